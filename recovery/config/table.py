"""The table of settings: one row per variable. Parsing, errors, docs/reference/settings.md and tests are driven by these rows.

To add a setting: one row here, one field in `recovery.config.Settings` or `recovery.core.rules.Rules`, one line in
`recovery.config.settings` that fills it, then `make docs`. tests/config walks every row; tests/house fails when the page is stale.
"""

from __future__ import annotations

from functools import partial

import msgspec

from recovery.config.setting import Fate, Setting, SettingKind, choice, node_id, number, path, switch

_EVERY = "in every process"
_RECOVERING = "when MS_ENABLE_RECOVERY=1"
_DAY = 86_400
_YEAR = 31_536_000

_whole = partial(number, SettingKind.INTEGER)
_seconds = partial(number, SettingKind.SECONDS)
_decimals = partial(number, SettingKind.DECIMAL_SECONDS)
_file, _directory = partial(path, "file"), partial(path, "directory")


def _passed(name: str, meaning: str) -> Setting:
    rule = "may be anything; the framework reads it, we leave it untouched"
    return Setting(name=name, kind=SettingKind.ANY, meaning=meaning, rule=rule, fate=Fate.PASSED_THROUGH)


def _accepted(name: str, meaning: str, because: str) -> Setting:
    passed, rule = _passed(name, meaning), "may be anything; it has no effect"
    return msgspec.structs.replace(passed, rule=rule, fate=Fate.ACCEPTED, because=because)


CLUSTER = (
    choice("MS_ROLE", ("MS_SCHED", "MS_WORKER", "MS_PSERVER", "MS_SERVER"), example="MS_WORKER", required=_EVERY,
           meaning="What this process is. One scheduler per job; it runs no training code. MS_SERVER means MS_PSERVER.",
           instead="A launcher sets it: `recovery run --standalone --nproc-per-node=1 SCRIPT` trains alone, for debugging."),
    _whole("MS_WORKER_NUM", 1, 65_535, example="8", required=_EVERY,
           meaning="Number of workers, which is the world size. The same in every process."),
    _whole("MS_SERVER_NUM", 0, 65_535, default="0",
           meaning="Number of parameter servers. They register and keep ranks of their own, outside the world."),
    Setting(name="MS_SCHED_HOST", kind=SettingKind.HOST, rule="must be an IP address or a host name", example="127.0.0.1", required=_EVERY,
            meaning="Address of the scheduler; IPv6 with or without brackets. The same in every process."),
    _whole("MS_SCHED_PORT", 1_024, 65_535, example="8118", required=_EVERY,
           meaning="Port of the scheduler. The same in every process. The scheduler alone may be given 0: any free port (tests use it)."),
    node_id("MS_NODE_ID", required=f"in workers and servers {_RECOVERING}",
            meaning="Name of this process in the cluster. A relaunched process takes its rank back by it; if all ids are whole numbers they are the ranks. Ignored by the scheduler. Unset without recovery: a random one."),
    Setting(name="MS_WORKER_IP", kind=SettingKind.ADDRESS, rule="must be an IP address", example="192.168.1.10",
            meaning="Address where the other workers reach this one. Unset: the address that the scheduler sees."),
)  # fmt: skip
RECOVERY = (
    switch("MS_ENABLE_RECOVERY", example="1",
           meaning="1: state is persisted and lost processes may come back. 0: nothing is persisted and the first loss ends the job."),
    _directory("MS_RECOVERY_PATH", example="./recovery/", required=_RECOVERING,
               meaning="Directory of the job's state. A relative one is resolved once, at start, against the working directory."),
    Setting(name="MS_JOB_TOKEN", kind=SettingKind.SECRET, rule="must be off, or 16 to 256 printable ASCII characters without blanks", example="a-secret-of-at-least-16-characters",
            meaning="What every process of the job proves to know before it is heard. The same in every process. Unset: a random one in the file job_token of MS_RECOVERY_PATH, which the first process makes; without recovery none. off: the network is trusted."),
    _decimals("MS_REJOIN_WINDOW", 0, 3_600, default="30",
              meaning="How long a lost node id is refused, counted from when it was last heard. 0: not at all."),
    choice("MS_REJOIN", ("wait", "fail", "proof"), default="wait",
           meaning="What a refused process does. wait: it waits and asks again. fail: it exits at once. proof: it waits, and the scheduler lets it in as soon as the process that held its id is proven dead."),
    choice("MS_ROLLBACK", ("checkpoint", "live"), example="live", default="checkpoint",
           meaning="What training goes back to when a process dies. checkpoint: the newest step of which every rank has a checkpoint. live: the newest step whose state is whole in a survivor's memory, where that is newer; random generators are then seeded again at each step."),
    _whole("MS_STANDBY_NUM", 0, 65_535, default="0", example="1",
           meaning="How many processes more than MS_WORKER_NUM may wait as standbys, of the whole job; each takes a rank when one is lost. Read by the scheduler."),
    _whole("MS_CHECKPOINT_COPIES", 0, 8, example="1",
           meaning="On how many other hosts each rank's newest checkpoints are held as well, so that a host that loses its disk gets them back. Read by the scheduler; in a worker 0 opens no port for it. Unset: 1 where the workers are on more than one host, else 0."),
    Setting(name="MS_CHECKPOINT_STORE", kind=SettingKind.ANY, rule="must be a URL of a scheme and a place (a bucket or host; an absolute path for file://), in printable characters, without user, password, spaces or a query", example="s3://bucket/prefix",
            meaning="URL of object storage to which the workers send committed checkpoints while training goes on, and from which a worker that holds none takes its own. Read by the workers; needs MS_ENABLE_RECOVERY=1 and the extra `objects`. Credentials come from the environment of the driver, never from here. Unset: none."),
    _seconds("MS_TAKEOVER_AFTER", 1, _YEAR, default="-1", example="60", negative="never",
             meaning="After how long the launcher of a host that is well starts a lost rank beside its own, where no other process has taken it. Read by recovery msrun. Negative: never."),
    _seconds("MS_STOP_GRACE", 0, _DAY, default="30", example="120",
             meaning="How long the processes of a job that is asked to stop (Ctrl-C, SIGTERM, SIGHUP, `recovery stop`) may take, the save of a last step included, before they are killed. Read by recovery msrun."),
    _file("MS_NOTICE_FILE", example="/run/preempted",
          meaning="File that appears when this host is to be taken away. It may hold how long that takes: seconds from when it was written, or a time (2027-01-31T12:00:00Z); empty: MS_STOP_GRACE. Read by recovery msrun and run. Unset: none."),
    Setting(name="MS_NOTICE_URL", kind=SettingKind.ANY, rule="must be an http:// URL of a host and a path, in printable characters, without user or password", example="http://169.254.169.254/latest/meta-data/spot/instance-action",
            meaning="Where the cloud says that this host is to be taken away, asked every 5 s: AWS' spot/instance-action (with a session token where one is wanted), Google's instance/preempted, Azure's scheduledevents. Read by recovery msrun and run. Unset: none."),
    switch("MS_STANDBY",
           meaning="1: this process waits as a standby even while there are free slots. 0: it takes a free slot."),
    node_id("MS_REPLACES",
            meaning="The lost node id whose rank this process was started to take, under a fresh id of its own. Set by recovery msrun."),
    _decimals("MS_RECONNECT_GRACE", 0, 60, default="0.5",
              meaning="How long a node whose connection closed may come back as if nothing had happened."),
    _decimals("MS_ABORT_TIMEOUT", 1, 3_600, default="10",
              meaning="How long the main thread of an interrupted worker may take to come back before the process replaces itself."),
    _decimals("MS_STEP_TIMEOUT", 0, 604_800, default="auto", example="600", beside=", or auto; 0: no limit",
              meaning="How long a rank that is connected may take for one step before all go back to the newest common checkpoint and a main thread that hangs is replaced. auto: the limits of each part of a step are learned, and MS_ON_HANG says what follows. A number: of a whole step, what training does between two steps (saves, evaluation, loading) included, from a rank's first step on. 0: as long as it takes. The scheduler's counts; auto in every process."),
    choice("MS_ON_HANG", ("replace", "report"), default="replace", example="report",
           meaning="With MS_STEP_TIMEOUT=auto: what becomes of a rank that is at twice its limit. replace: all go back to the newest common checkpoint, and a main thread that hangs is replaced. report: it is an event and no more, as it is without recovery (MS_ENABLE_RECOVERY=0). Read by the scheduler."),
    _whole("MS_STRAGGLER_PERCENT", 0, 10_000, default="33", example="50",
           meaning="By how many per cent a rank's own work on a batch (the loader's, and the computation up to its own gradients) may take longer than that of the rank in the middle before it is told that it is slow. It is told and no more. 0: never, as for ranks that do different work on purpose. Read by the scheduler."),
    _decimals("MS_DRAIN_TIMEOUT", 0, 3_600, default="5",
              meaning="How long a worker that is asked to end (SIGTERM, `recovery drain`) may take to hand its rank over to a standby. The scheduler's counts for the ranks that wait for it, a worker's for its own end."),
    switch("MS_ALLOW_RESTART_FROM_ZERO",
           meaning="1: when ranks hold checkpoints but none in common, the job starts again at step 0. 0: it stops and shows which rank holds what."),
    switch("MS_COMPARE_REPLICAS", default="1",
           meaning="1: at each save the ranks compare what DistributedDataParallel keeps alike on all of them (weights, states of optimizers). A step at which they are found to differ is not committed, and training goes back. 0: nothing is compared."),
    switch("MS_CONTINUE",
           meaning="1: a finished run goes on from its newest common checkpoint, so that the same command with a later end (more epochs) trains on. 0: a finished job's path begins its next run at step 0. Read by the scheduler, and by recovery msrun and run, which refuse the path of a finished job that has checkpoints where it is not set; --continue sets it."),
    switch("MS_STORE_WITHOUT_WAL",
           meaning="1: a store whose -wal file is missing or has lost its end is opened all the same. Set it once, after another tool folded the -wal in, or to go on without the lost rows."),
    switch("MS_REBUILD_STORE",
           meaning="1: a scheduler that finds its store lost asks the workers, and rebuilds it from what they, their own stores and checkpoints report of the job. 0: it refuses and names what it found."),
    _whole("MS_FAILED_SAVES_MAX", 0, 10**9, default="10",
           meaning="Saves on the disk that may fail in a row on one rank. When so many have, or the last one of the training has, it ends with SAVES_FAILED instead of 0. 0: it never ends for that."),
    _file("MS_STEP_LOG", example="./steps.log",
          meaning="File to which every applied step is appended, for tests. Unset: none is written."),
    _file("MS_FINISHED_FILE", example="/proc/4711/fd/9",
          meaning="Path to which a worker writes that its job has finished: how it ends from then on is no failure of training. The engine notes its own exit codes there, too. Set by recovery msrun: a pipe of the launcher's, so that no disk is needed."),
)  # fmt: skip
MEMORY_TIER = (
    _whole("MS_MEMORY_CHECKPOINT_STEPS", 0, 10**9, default="0", example="10",
           meaning="Global steps between two checkpoints in memory (tmpfs), beside those that go to the disk; they survive a process and not its host. 0: none. The same in every process. Needs MS_ENABLE_RECOVERY=1, PyTorch and a ModelCheckpoint."),
    _directory("MS_MEMORY_CHECKPOINT_PATH", example="/dev/shm",  # noqa: S108 - each user's directory there is checked to be the user's own
               meaning="The tmpfs on which checkpoints in memory lie, in a directory for each job. Unset: /dev/shm."),
    _whole("MS_MEMORY_CHECKPOINT_BYTES", 0, 10**12 - 1, default="0",
           meaning="Bytes that one rank's checkpoints in memory may take together. There are two, and three for a moment where ranks are far apart. What does not fit is not saved there. 0: a quarter of what is free, shared by the ranks of the host."),
)  # fmt: skip
TIMING = (
    _seconds("MS_TOPO_TIMEOUT", 1, _YEAR, default="1800", negative="no limit",
             meaning="How long to wait until all ranks are ready, when the job forms and after a loss. Negative: for ever."),
    _seconds("MS_NODE_TIMEOUT", 1, _DAY, default="30", negative="no limit",
             meaning="How long a silent node is believed alive. Negative: for ever, as MS_DISABLE_HEARTBEAT=1."),
    _seconds("MS_RECEIVE_MSG_TIMEOUT", 1, _DAY, default="15",
             meaning="How long a worker waits for any message of the scheduler before it dials again."),
    _seconds("MS_RETRY_INTERVAL_LOWER", 1, 3_600, default="3",
             meaning="Lower bound of the random wait between heartbeats. Above the upper one: a warning, and the upper one counts. Unset: less than the default where MS_NODE_TIMEOUT or MS_RECEIVE_MSG_TIMEOUT is short."),
    _seconds("MS_RETRY_INTERVAL_UPPER", 1, 3_600, default="5",
             meaning="Upper bound of it. Must be less than MS_NODE_TIMEOUT and MS_RECEIVE_MSG_TIMEOUT. Unset: less than the default where one of these is short."),
    _seconds("MS_HEARTBEAT_RETRY_TIMEOUT", 1, _DAY, default="20",
             meaning="Without recovery: how long a worker tries to reach a silent scheduler before it ends itself."),
    switch("MS_DISABLE_HEARTBEAT", on="disabled", off="enabled",
           meaning="1: a silent node is never declared lost by its lease (for debuggers). A closed connection still counts."),
)  # fmt: skip
SECURE_CHANNEL = (
    switch("MS_ENABLE_SSL", example="1",
           meaning="1: scheduler, workers, launchers and commands speak TLS, and each presents a certificate. 0: plain text. The same in every process; as enable_ssl of init and set_ps_context."),
    _file("MS_CONFIG_FILE_PATH", example="./config.json",
          meaning="config.json, which names certificates, authority, revocation list and ciphers; as config_file_path."),
    _file("MS_CLIENT_PASSWORD_FILE", example="./client.password",
          meaning="File of mode 0600 whose one line is the password of client_cert_path."),
    _file("MS_SERVER_PASSWORD_FILE", example="./server.password",
          meaning="File of mode 0600 whose one line is the password of server_cert_path. Read by the scheduler."),
)  # fmt: skip

# What means nothing here: variables of the frameworks, and those that MindSpore's documents name besides.
FRAMEWORK = (
    _passed("MS_HCCL_CM_INIT", "Ascend: HCCL forms its groups without a rank table."),
    _passed("MS_ENABLE_LCCL", "Ascend: the LCCL library within one machine."),
    _passed("MS_DISABLE_LCCL_KERNELS_LIST", "Ascend: operators that LCCL shall not take."),
)

WITHOUT_EFFECT = (
    _accepted(
        "MS_CLUSTER_RETRY_NUM",
        "Number of networking tries.",
        "waits are bounded by time here, not by a count: MS_TOPO_TIMEOUT",
    ),
    _accepted("MS_RECOVERY_INTERVAL", "Seconds between recoveries.", "upstream reads it and never uses it"),
    _accepted(
        "MS_SCHED_MANAGE_PORT",
        "Port of the old scheduler's HTTP interface.",
        "MS_SCHED_PORT serves workers and inspection alike",
    ),
    _accepted("MS_COMM_TYPE", "Transport of the old parameter server.", "there is one transport"),
    _accepted(
        "MS_INTERFACE",
        "Network interface of the old parameter server.",
        "the address decides: MS_SCHED_HOST and MS_WORKER_IP",
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
