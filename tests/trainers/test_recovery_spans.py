"""A job whose recoveries go to an OpenTelemetry collector: one span for each, its parts as children."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import override

from recovery.report.recoveries import PARTS
from recovery.report.stored import read_stored
from recovery.report.timeline import read_timeline
from tests.cluster.small_cluster import SmallCluster
from tests.pace import wait_for

pytestmark = [pytest.mark.trainers, pytest.mark.cluster]
wire = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2")


class Collector(ThreadingHTTPServer):
    """Takes traces, as an OpenTelemetry collector does; so many times it answers that it cannot."""

    def __init__(self, *, refuses: int = 0) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.requests: list[Any] = []
        self.refuses = refuses

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def spans(self) -> list[Any]:
        return [
            span
            for request in self.requests
            for of_resource in request.resource_spans
            for of_scope in of_resource.scope_spans
            for span in of_scope.spans
        ]


class _Handler(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.server.refuses:
            self.server.refuses -= 1
            self.send_response(400)
        else:
            assert self.path == "/v1/traces"
            self.server.requests.append(wire.ExportTraceServiceRequest.FromString(body))
            self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    @override
    def log_message(self, format: str, *arguments: object) -> None: ...


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def attributes(of: Any) -> dict[str, Any]:
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in of.attributes}


def test_a_recovery_is_a_span_with_its_parts(tmp_path: Path, collector: Collector) -> None:
    environment = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector.address,
        "OTEL_EXPORTER_OTLP_COMPRESSION": "none",
        "OTEL_RESOURCE_ATTRIBUTES": "team=blue",
        "JOB_STEP_MS": "60",
    }
    with SmallCluster(tmp_path, environment=environment) as cluster:
        cluster.start()
        cluster.wait_step(5)
        cluster.kill_and_relaunch("worker_1")
        wait_for(lambda: collector.requests, "spans")
        cluster.wait_end()
        cluster.check_result()

    [request] = collector.requests
    resource = attributes(request.resource_spans[0].resource)
    stored = read_stored(tmp_path / "recovery")
    assert (resource["service.name"], resource["team"]) == ("recovery", "blue")
    assert resource["recovery.job"] == stored.job.job
    [recovery] = read_timeline(stored)[0].recoveries
    [whole] = [span for span in collector.spans() if not span.parent_span_id]
    told = attributes(whole)
    assert (whole.name, told["recovery.cause"], told["recovery.generation"]) == ("recovery", "node_lost", 1)
    assert told["recovery.reason"] == recovery.because_text
    assert whole.end_time_unix_nano == recovery.marks_ms[-1] * 10**6
    parts = [span for span in collector.spans() if span.parent_span_id == whole.span_id]
    assert len(parts) == len(collector.spans()) - 1
    assert {span.name for span in parts} <= {"unknown", *PARTS}
    assert all(span.trace_id == whole.trace_id for span in parts)
    took_ms = sum(span.end_time_unix_nano - span.start_time_unix_nano for span in parts) // 10**6
    assert took_ms == recovery.total_ms
