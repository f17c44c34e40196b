"""The table of settings: one row per variable. Parsing, errors, docs/reference/settings.md and tests are driven by these rows.

To add a setting: one row here, one field in `recovery.config.Settings` or `recovery.core.rules.Rules`, one line in
`recovery.config.settings` that fills it, then `make docs`. tests/config walks every row; tests/house fails when the page is stale.
"""

from __future__ import annotations

from recovery.config.launcher_settings import OF_LAUNCHERS
from recovery.config.memory_settings import MEMORY_TIER
from recovery.config.setting import Setting, SettingKind
from recovery.config.settings_of_others import FRAMEWORK, WITHOUT_EFFECT

_EVERY = "in every process"
_RECOVERING = "when MS_ENABLE_RECOVERY=1"
_DAY = 86_400
_YEAR = 31_536_000
_SAVES_MOST = 10**9
_SWITCH = ("0", "1")


CLUSTER = (
    Setting(
        name="MS_ROLE",
        kind=SettingKind.CHOICE,
        meaning="What this process is. One scheduler per job; it runs no training code. MS_SERVER means MS_PSERVER.",
        rule="must be MS_SCHED, MS_WORKER, MS_PSERVER or MS_SERVER",
        example="MS_WORKER",
        instead="A launcher sets it: `recovery run --standalone --nproc-per-node=1 SCRIPT` trains alone, for debugging.",
        required=_EVERY,
        choices=("MS_SCHED", "MS_WORKER", "MS_PSERVER", "MS_SERVER"),
    ),
    Setting(
        name="MS_WORKER_NUM",
        kind=SettingKind.INTEGER,
        meaning="Number of workers, which is the world size. The same in every process.",
        rule="must be a whole number from 1 to 65535",
        example="8",
        required=_EVERY,
        low=1,
        high=65_535,
    ),
    Setting(
        name="MS_SERVER_NUM",
        kind=SettingKind.INTEGER,
        meaning="Number of parameter servers. They register and keep ranks of their own, outside the world.",
        rule="must be a whole number from 0 to 65535",
        example="0",
        default="0",
        low=0,
        high=65_535,
    ),
    Setting(
        name="MS_SCHED_HOST",
        kind=SettingKind.HOST,
        meaning="Address of the scheduler; IPv6 with or without brackets. The same in every process.",
        rule="must be an IP address or a host name",
        example="127.0.0.1",
        required=_EVERY,
    ),
    Setting(
        name="MS_SCHED_PORT",
        kind=SettingKind.INTEGER,
        meaning="Port of the scheduler. The same in every process. The scheduler alone may be given 0: any free port (tests use it).",
        rule="must be a whole number from 1024 to 65535",
        example="8118",
        required=_EVERY,
        low=1_024,
        high=65_535,
    ),
    Setting(
        name="MS_NODE_ID",
        kind=SettingKind.NODE_ID,
        meaning="Name of this process in the cluster. A relaunched process takes its rank back by it; if all ids are whole numbers they are the ranks. Ignored by the scheduler. Unset without recovery: a random one.",
        rule="must be 1 to 64 of the characters A-Z a-z 0-9 . _ - and begin with a letter or digit",
        example="worker_0",
        required=f"in workers and servers {_RECOVERING}",
    ),
    Setting(
        name="MS_WORKER_IP",
        kind=SettingKind.ADDRESS,
        meaning="Address where the other workers reach this one. Unset: the address that the scheduler sees.",
        rule="must be an IP address",
        example="192.168.1.10",
    ),
)

RECOVERY = (
    Setting(
        name="MS_ENABLE_RECOVERY",
        kind=SettingKind.CHOICE,
        meaning="1: state is persisted and lost processes may come back. 0: nothing is persisted and the first loss ends the job.",
        rule="must be 1 (on) or 0 (off)",
        example="1",
        default="0",
        choices=_SWITCH,
    ),
    Setting(
        name="MS_RECOVERY_PATH",
        kind=SettingKind.PATH,
        meaning="Directory of the job's state. A relative one is resolved once, at start, against the working directory.",
        rule="must be the path of a directory, in printable characters, without spaces at its ends",
        example="./recovery/",
        required=_RECOVERING,
    ),
    Setting(
        name="MS_JOB_TOKEN",
        kind=SettingKind.SECRET,
        meaning="What every process of the job proves to know before it is heard. The same in every process. Unset: a random one in the file job_token of MS_RECOVERY_PATH, which the first process makes; without recovery none. off: the network is trusted.",
        rule="must be off, or 16 to 256 printable ASCII characters without blanks",
        example="a-secret-of-at-least-16-characters",
    ),
    Setting(
        name="MS_REJOIN_WINDOW",
        kind=SettingKind.DECIMAL_SECONDS,
        meaning="How long a lost node id is refused, counted from when it was last heard. 0: not at all.",
        rule="must be a number of seconds from 0 to 3600, with at most three decimals",
        example="30",
        default="30",
        low=0,
        high=3_600,
    ),
    Setting(
        name="MS_REJOIN",
        kind=SettingKind.CHOICE,
        meaning="What a refused process does. wait: it waits and asks again. fail: it exits at once. proof: it waits, and the scheduler lets it in as soon as the process that held its id is proven dead.",
        rule="must be wait, fail or proof",
        example="wait",
        default="wait",
        choices=("wait", "fail", "proof"),
    ),
    Setting(
        name="MS_ROLLBACK",
        kind=SettingKind.CHOICE,
        meaning="What training goes back to when a process dies. checkpoint: the newest step of which every rank has a checkpoint. live: the newest step whose state is whole in a survivor's memory, where that is newer; random generators are then seeded again at each step.",
        rule="must be checkpoint or live",
        example="live",
        default="checkpoint",
        choices=("checkpoint", "live"),
    ),
    Setting(
        name="MS_STANDBY_NUM",
        kind=SettingKind.INTEGER,
        meaning="How many processes more than MS_WORKER_NUM may wait as standbys, of the whole job; each takes a rank when one is lost. Read by the scheduler.",
        rule="must be a whole number from 0 to 65535",
        example="1",
        default="0",
        low=0,
        high=65_535,
    ),
    Setting(
        name="MS_CHECKPOINT_COPIES",
        kind=SettingKind.INTEGER,
        meaning="On how many other hosts each rank's newest checkpoints are held as well, so that a host that loses its disk gets them back. Read by the scheduler; in a worker 0 opens no port for it. Unset: 1 where the workers are on more than one host, else 0.",
        rule="must be a whole number from 0 to 8",
        example="1",
        low=0,
        high=8,
    ),
    Setting(
        name="MS_CHECKPOINT_STORE",
        kind=SettingKind.ANY,
        meaning="URL of object storage to which the workers send committed checkpoints while training goes on, and from which a worker that holds none takes its own. Read by the workers; needs MS_ENABLE_RECOVERY=1 and the extra `objects`. Credentials come from the environment of the driver, never from here. Unset: none.",
        rule="must be a URL of a scheme and a place, in printable characters, without user, password, spaces or a query",
        example="s3://bucket/prefix",
    ),
    *OF_LAUNCHERS,
    Setting(
        name="MS_STANDBY",
        kind=SettingKind.CHOICE,
        meaning="1: this process waits as a standby even while there are free slots. 0: it takes a free slot.",
        rule="must be 1 (on) or 0 (off)",
        example="0",
        default="0",
        choices=_SWITCH,
    ),
    Setting(
        name="MS_REPLACES",
        kind=SettingKind.NODE_ID,
        meaning="The lost node id whose rank this process was started to take, under a fresh id of its own. Set by recovery msrun.",
        rule="must be 1 to 64 of the characters A-Z a-z 0-9 . _ - and begin with a letter or digit",
        example="worker_0",
    ),
    Setting(
        name="MS_RECONNECT_GRACE",
        kind=SettingKind.DECIMAL_SECONDS,
        meaning="How long a node whose connection closed may come back as if nothing had happened.",
        rule="must be a number of seconds from 0 to 60, with at most three decimals",
        example="0.5",
        default="0.5",
        low=0,
        high=60,
    ),
    Setting(
        name="MS_ABORT_TIMEOUT",
        kind=SettingKind.DECIMAL_SECONDS,
        meaning="How long the main thread of an interrupted worker may take to come back before the process replaces itself.",
        rule="must be a number of seconds from 1 to 3600, with at most three decimals",
        example="10",
        default="10",
        low=1,
        high=3_600,
    ),
    Setting(
        name="MS_STEP_TIMEOUT",
        kind=SettingKind.DECIMAL_SECONDS,
        meaning="How long a rank that is connected may take for one step, what training does between two steps (saves, evaluation, loading) included, before all go back to the newest common checkpoint and a main thread that hangs is replaced; from a rank's first step on. 0: as long as it takes. The scheduler's counts.",
        rule="must be a number of seconds from 0 to 604800, with at most three decimals; 0: no limit",
        example="1800",
        default="0",
        low=0,
        high=604_800,
    ),
    Setting(
        name="MS_DRAIN_TIMEOUT",
        kind=SettingKind.DECIMAL_SECONDS,
        meaning="How long a worker that is asked to end (SIGTERM, `recovery drain`) may take to hand its rank over to a standby. The scheduler's counts for the ranks that wait for it, a worker's for its own end.",
        rule="must be a number of seconds from 0 to 3600, with at most three decimals",
        example="5",
        default="5",
        low=0,
        high=3_600,
    ),
    Setting(
        name="MS_ALLOW_RESTART_FROM_ZERO",
        kind=SettingKind.CHOICE,
        meaning="1: when ranks hold checkpoints but none in common, the job starts again at step 0. 0: it stops and shows which rank holds what.",
        rule="must be 1 (on) or 0 (off)",
        example="0",
        default="0",
        choices=_SWITCH,
    ),
    Setting(
        name="MS_STORE_WITHOUT_WAL",
        kind=SettingKind.CHOICE,
        meaning="1: a store whose -wal file is missing or has lost its end is opened all the same. Set it once, after another tool folded the -wal in, or to go on without the lost rows.",
        rule="must be 1 (on) or 0 (off)",
        example="0",
        default="0",
        choices=_SWITCH,
    ),
    Setting(
        name="MS_REBUILD_STORE",
        kind=SettingKind.CHOICE,
        meaning="1: a scheduler that finds its store lost rebuilds it from what the workers' own stores and checkpoints, or the workers themselves, report of the job. 0: it refuses and names what it found.",
        rule="must be 1 (on) or 0 (off)",
        example="0",
        default="0",
        choices=_SWITCH,
    ),
    Setting(
        name="MS_FAILED_SAVES_MAX",
        kind=SettingKind.INTEGER,
        meaning="Saves on the disk that may fail in a row on one rank. When so many have, or the last one of the training has, it ends with SAVES_FAILED instead of 0. 0: it never ends for that.",
        rule="must be a whole number from 0 to 1000000000",
        example="10",
        default="10",
        low=0,
        high=_SAVES_MOST,
    ),
    Setting(
        name="MS_STEP_LOG",
        kind=SettingKind.PATH,
        meaning="File to which every applied step is appended, for tests. Unset: none is written.",
        rule="must be the path of a file, in printable characters, without spaces at its ends",
        example="./steps.log",
    ),
    Setting(
        name="MS_FINISHED_FILE",
        kind=SettingKind.PATH,
        meaning="File that a worker makes when it hears that its job has finished: how it ends from then on is no failure of training. The engine notes its own exit codes there, too. Set by recovery msrun.",
        rule="must be the path of a file, in printable characters, without spaces at its ends",
        example="./worker_0.finished",
    ),
)

TIMING = (
    Setting(
        name="MS_TOPO_TIMEOUT",
        kind=SettingKind.SECONDS,
        meaning="How long to wait until all ranks are ready, when the job forms and after a loss. Negative: for ever.",
        rule="must be a whole number of seconds from 1 to 31536000, or a negative one for no limit",
        example="1800",
        default="1800",
        low=1,
        high=_YEAR,
        negative_is_for_ever=True,
    ),
    Setting(
        name="MS_NODE_TIMEOUT",
        kind=SettingKind.SECONDS,
        meaning="How long a silent node is believed alive. Negative: for ever, as MS_DISABLE_HEARTBEAT=1.",
        rule="must be a whole number of seconds from 1 to 86400, or a negative one for no limit",
        example="30",
        default="30",
        low=1,
        high=_DAY,
        negative_is_for_ever=True,
    ),
    Setting(
        name="MS_RECEIVE_MSG_TIMEOUT",
        kind=SettingKind.SECONDS,
        meaning="How long a worker waits for any message of the scheduler before it dials again.",
        rule="must be a whole number of seconds from 1 to 86400",
        example="15",
        default="15",
        low=1,
        high=_DAY,
    ),
    Setting(
        name="MS_RETRY_INTERVAL_LOWER",
        kind=SettingKind.SECONDS,
        meaning="Lower bound of the random wait between heartbeats. Above the upper one: a warning, and the upper one counts. Unset: less than the default where MS_NODE_TIMEOUT or MS_RECEIVE_MSG_TIMEOUT is short.",
        rule="must be a whole number of seconds from 1 to 3600",
        example="3",
        default="3",
        low=1,
        high=3_600,
    ),
    Setting(
        name="MS_RETRY_INTERVAL_UPPER",
        kind=SettingKind.SECONDS,
        meaning="Upper bound of it. Must be less than MS_NODE_TIMEOUT and MS_RECEIVE_MSG_TIMEOUT. Unset: less than the default where one of these is short.",
        rule="must be a whole number of seconds from 1 to 3600",
        example="5",
        default="5",
        low=1,
        high=3_600,
    ),
    Setting(
        name="MS_HEARTBEAT_RETRY_TIMEOUT",
        kind=SettingKind.SECONDS,
        meaning="Without recovery: how long a worker tries to reach a silent scheduler before it ends itself.",
        rule="must be a whole number of seconds from 1 to 86400",
        example="20",
        default="20",
        low=1,
        high=_DAY,
    ),
    Setting(
        name="MS_DISABLE_HEARTBEAT",
        kind=SettingKind.CHOICE,
        meaning="1: a silent node is never declared lost by its lease (for debuggers). A closed connection still counts.",
        rule="must be 1 (disabled) or 0 (enabled)",
        example="0",
        default="0",
        choices=_SWITCH,
    ),
)

SECURE_CHANNEL = (
    Setting(
        name="MS_ENABLE_SSL",
        kind=SettingKind.CHOICE,
        meaning="1: scheduler, workers, launchers and commands speak TLS, and each presents a certificate. 0: plain text. The same in every process; as enable_ssl of init and set_ps_context.",
        rule="must be 1 (on) or 0 (off)",
        example="1",
        default="0",
        choices=_SWITCH,
    ),
    Setting(
        name="MS_CONFIG_FILE_PATH",
        kind=SettingKind.PATH,
        meaning="config.json, which names certificates, authority, revocation list and ciphers; as config_file_path.",
        rule="must be the path of a file, in printable characters, without spaces at its ends",
        example="./config.json",
    ),
    Setting(
        name="MS_CLIENT_PASSWORD_FILE",
        kind=SettingKind.PATH,
        meaning="File of mode 0600 whose one line is the password of client_cert_path.",
        rule="must be the path of a file, in printable characters, without spaces at its ends",
        example="./client.password",
    ),
    Setting(
        name="MS_SERVER_PASSWORD_FILE",
        kind=SettingKind.PATH,
        meaning="File of mode 0600 whose one line is the password of server_cert_path. Read by the scheduler.",
        rule="must be the path of a file, in printable characters, without spaces at its ends",
        example="./server.password",
    ),
)

GROUPS: tuple[tuple[str, tuple[Setting, ...]], ...] = (
    ("Cluster", CLUSTER),
    ("Recovery", RECOVERY),
    ("Memory tier", MEMORY_TIER),
    ("Timing", TIMING),
    ("Secure channel", SECURE_CHANNEL),
    ("Handed to the framework", FRAMEWORK),
    ("Accepted without effect", WITHOUT_EFFECT),
)

SETTINGS: tuple[Setting, ...] = tuple(setting for _, rows in GROUPS for setting in rows)
"""Every row, in the order of the page."""

BY_NAME: dict[str, Setting] = {setting.name: setting for setting in SETTINGS}
