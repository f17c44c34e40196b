"""TLS from a Secret: its files in each pod, the variables that name them, and config.json, which names them too. Pure."""

from __future__ import annotations

import json
from typing import Any

from recovery.kubernetes.job import KubernetesJob

FILES = ("ca.crt", "client.p12", "crl.pem", "password", "server.p12")
"""The keys of the Secret, as `recovery certs init` calls its files."""
VARIABLES = ("MS_ENABLE_SSL", "MS_CONFIG_FILE_PATH", "MS_CLIENT_PASSWORD_FILE", "MS_SERVER_PASSWORD_FILE")
_FOLDER, _CONFIG = "/tls", "config.json"
_OWNER_READS = 0o400


def variables(job: KubernetesJob) -> dict[str, str]:
    """Of every pod."""
    if not job.tls_secret:
        return {}
    password = f"{_FOLDER}/password"
    return dict(zip(VARIABLES, ("1", f"{_FOLDER}/{_CONFIG}", password, password), strict=True))


def config_map(job: KubernetesJob) -> dict[str, Any]:
    """config.json: a name that stays is what the scheduler's certificate is checked for, since a launcher dials an address."""
    named = {
        "server_cert_path": f"{_FOLDER}/server.p12",
        "client_cert_path": f"{_FOLDER}/client.p12",
        "ca_cert_path": f"{_FOLDER}/ca.crt",
        "crl_path": f"{_FOLDER}/crl.pem",
        "expected_hostname": job.scheduler,
    }
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": f"{job.name}-tls"},
        "data": {_CONFIG: json.dumps(named, indent=2)},
    }


def volumes(job: KubernetesJob) -> list[dict[str, Any]]:
    """Those of a pod."""
    if not job.tls_secret:
        return []
    return [
        {"name": "tls", "secret": {"secretName": job.tls_secret, "defaultMode": _OWNER_READS}},
        {"name": "tls-config", "configMap": {"name": f"{job.name}-tls"}},
    ]


def mounts(job: KubernetesJob) -> list[dict[str, Any]]:
    """File by file: in a volume of a Secret all names are links, and a secret is read from none."""
    if not job.tls_secret:
        return []
    placed = [*(("tls", name) for name in FILES), ("tls-config", _CONFIG)]
    return [{"name": volume, "mountPath": f"{_FOLDER}/{name}", "subPath": name} for volume, name in placed]
