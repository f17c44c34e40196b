"""docs/reference/protocol.md: what a client needs to know. Schema and numbers come from the code, the order of the conversation from here.

tests/protocol keeps a client that was written from the page alone. A message, a refusal or a route that is not described here fails below.
"""

from __future__ import annotations

import ast
from enum import Enum
from typing import Any, get_args

import msgspec

from recovery.config.table import SETTINGS
from recovery.core import messages as m
from recovery.core.copy_messages import FetchFault
from recovery.core.held import HeldCopy, LiveState, Source
from recovery.core.ids import Generation, Incarnation, NodeId, RequestId
from recovery.core.message_fields import NODE_ID_PATTERN
from recovery.core.policy.registration_table import Verdict
from recovery.core.rules import Rules
from recovery.core.scheduler.job_end import SHUTDOWN_MS
from recovery.core.scheduler.membership.registration import ASK_AGAIN_MS
from recovery.errors import ROWS
from recovery.transport import connection, connection_limiter, job_token, outbox
from recovery.transport.codec import encode
from recovery.transport.server import CLUSTER_PATH
from tests.house.files import ROOT
from tests.house.protocol_words import ANSWERS, CONVERSATION, FROM_SCHEDULER, HEAD, REFUSALS

_INSIDE = (
    m.HeldCheckpoint,
    HeldCopy,
    LiveState,
    m.Skipped,
    m.JobHistory,
    m.GenerationStart,
    Source,
    FetchFault,
    m.ProcessIdentity,
)
_SOURCES = tuple(
    f"recovery/core/{name}.py"
    for name in (
        "messages",
        "generation_messages",
        "barrier_messages",
        "copy_messages",
        "held",
    )
)
_RULES = Rules(worker_count=1)
_EXAMPLES: tuple[tuple[str, m.FromNode | m.FromScheduler], ...] = (
    (
        "a heartbeat",
        m.Heartbeat(sequence=7, generation=Generation(2), step=300),
    ),
    (
        "a first registration, `token` nothing",
        m.Register(
            request_id=RequestId("5f0c7b7e9d7a4e0f8f0e6f3d2c1b0a99"),
            protocol=m.PROTOCOL_VERSION,
            node_id=NodeId("worker_0"),
            role=m.Role.WORKER,
            host="",
            pid=4711,
            worker_count=2,
            server_count=0,
            recovery_enabled=True,
            token=None,
            incarnation=Incarnation(0),
            generation=Generation(0),
        ),
    ),
)


def protocol_page() -> str:
    """The whole page."""
    parts = [
        HEAD.format(**_numbers()),
        _examples(),
        CONVERSATION.format(**_numbers()),
        _answers(),
        _refusals(),
        "## Messages from a node\n",
        *(_message(kind) for kind in get_args(m.FromNode)),
        "## Messages from the scheduler\n",
        *(_message(kind) for kind in get_args(m.FromScheduler)),
        "## Inside them\n",
        *(_message(kind) for kind in _INSIDE),
        _words(m.Role, "role"),
        _words(m.JobOutcome, "outcome"),
    ]
    return "\n".join(parts)


def _numbers() -> dict[str, Any]:
    """Every number and name in the text, as the code has it."""
    defaults = {setting.name: setting.default for setting in SETTINGS if setting.name in _SETTINGS}
    assert sorted(defaults) == sorted(_SETTINGS), "a setting of the page has another name now"
    return {
        **{name.lower(): f"`{name}` ({default} s)" for name, default in defaults.items()},
        "version": m.PROTOCOL_VERSION,
        "path": CLUSTER_PATH,
        "challenge_path": job_token.CHALLENGE_PATH,
        "challenge_s": f"{job_token.CHALLENGE_MS / 1000:g}",
        "scheme": job_token.SCHEME,
        "proof_header": job_token.PROOF_HEADER,
        "purpose": job_token.PURPOSE,
        "pattern": NODE_ID_PATTERN.removeprefix(r"\A").removesuffix(r"\Z"),
        "frame_before": _RULES.frame_bytes_max_unregistered,
        "frame_after": _RULES.frame_bytes_max,
        "remembered": _RULES.requests_remembered,
        "backoff_min": _RULES.backoff_ms_min,
        "backoff_max": _RULES.backoff_ms_max,
        "first_message_s": f"{connection_limiter.FIRST_MESSAGE_S:g}",
        "beside_nodes": connection_limiter.BESIDE_NODES,
        "outbox_messages": outbox.MESSAGES_MAX,
        "outbox_bytes": outbox.BYTES_MAX,
        "close_s": f"{connection.CLOSE_S:g}",
        "shutdown_s": f"{SHUTDOWN_MS / 1000:g}",
    }


_SETTINGS = (
    "MS_NODE_TIMEOUT",
    "MS_REJOIN_WINDOW",
    "MS_RECONNECT_GRACE",
    "MS_RETRY_INTERVAL_LOWER",
    "MS_RETRY_INTERVAL_UPPER",
    "MS_RECEIVE_MSG_TIMEOUT",
    "MS_TOPO_TIMEOUT",
)


def _examples() -> str:
    shown = []
    for what, message in _EXAMPLES:
        frame = encode(message).hex()
        lines = "\n".join(frame[at : at + 96] for at in range(0, len(frame), 96))
        as_json = msgspec.json.encode(message).decode()
        shown.append(
            f"{what.capitalize()}, as JSON and as the bytes of its frame in hex:\n\n```\n{as_json}\n{lines}\n```\n"
        )
    return "\n".join(shown)


def _answers() -> str:
    kinds = {str(kind.__struct_config__.tag) for kind in get_args(m.FromNode)}
    assert set(ANSWERS) == kinds, f"not described or unknown: {set(ANSWERS) ^ kinds}"
    from_scheduler = {str(kind.__struct_config__.tag) for kind in get_args(m.FromScheduler)}
    assert set(FROM_SCHEDULER) == from_scheduler, (
        f"not described or unknown: {set(FROM_SCHEDULER) ^ from_scheduler}"
    )
    rows = "".join(f"| `{tag}` | {who} | {answer} |\n" for tag, (who, answer) in ANSWERS.items())
    node_rows = "".join(f"| `{tag}` | {what} |\n" for tag, what in FROM_SCHEDULER.items())
    return (
        "## The answer to each message\n\n| message | who sends it, and when | what comes back |\n|---|---|---|\n"
        f"{rows}\n| from the scheduler | what a node does |\n|---|---|\n{node_rows}"
    )


def _refusals() -> str:
    # A place that is held is refused as NODE_ALIVE.
    lets_in = (Verdict.ADMIT, Verdict.ADMIT_STANDBY, Verdict.RESUME)
    from_table = {verdict.name for verdict in Verdict if verdict not in (*lets_in, Verdict.SLOT_HELD)}
    assert set(REFUSALS) == {*from_table, "PROTOCOL_VERSION", "JOB_MISMATCH", "NODE_ID_INVALID"}, (
        "refusals that are not described"
    )
    rows = "".join(
        f"| `{code}` | {when} | {again.format(ask_again=f'{ASK_AGAIN_MS:,}')} | {ROWS[code].exit_code} |\n"
        for code, (when, again) in REFUSALS.items()
    )
    return (
        "## Refusals\n\n`retry_after_ms` is when the same request may be made again: asking sooner is refused again and gains nothing. Where it is "
        "more than 0 the connection may stay open. Whoever keeps it need not ask: `admitted` comes on it as soon as the time has come; "
        "it may ask again on it, or close it and dial. Where it is 0 or not there a close follows. Without it (nothing) asking again will "
        "not help, and the process ends, by convention with the exit code of the last column.\n\n"
        f"| code | when | `retry_after_ms` | exit code |\n|---|---|---|---|\n{rows}"
    )


def _words(kind: type[Enum], field: str) -> str:
    meanings = _docstrings().get(kind.__name__, {})
    rows = "".join(f"| `{one.value}` | {meanings.get(one.name, '')} |\n" for one in kind)
    return (
        f"### Values of `{field}`\n\n{(kind.__doc__ or '').strip()}\n\n| value | meaning |\n|---|---|\n{rows}"
    )


def _message(kind: type[msgspec.Struct]) -> str:
    name = kind.__struct_config__.tag or kind.__name__
    meanings = _docstrings().get(kind.__name__, {})
    rows = "\n".join(
        f"| `{field.name}` | {_kind(field.type)} | {'yes' if field.required else f'no: {_default(field.default)}'} | {meanings.get(field.name, '')} |"
        for field in msgspec.structs.fields(kind)
    )
    return (
        f"### {name}\n\n{(kind.__doc__ or '').strip()}\n\n"
        f"| field | type | required, or else | meaning |\n|---|---|---|---|\n{rows}\n"
    )


def _default(value: object) -> str:
    if value is None:
        return "nothing"
    return str(value).lower() if isinstance(value, (bool, int)) else "empty"


def _docstrings() -> dict[str, dict[str, str]]:
    """By class and field: the sentence that stands under the field."""
    found: dict[str, dict[str, str]] = {}
    parsed = [ast.parse((ROOT / name).read_text(encoding="utf-8")) for name in _SOURCES]
    for node in (node for source in parsed for node in source.body):
        if not isinstance(node, ast.ClassDef):
            continue
        for member, text in zip(node.body, node.body[1:], strict=False):
            if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
                target = member.target if isinstance(member, ast.AnnAssign) else None
                if isinstance(member, ast.Assign):
                    [target] = [one for one in member.targets if isinstance(one, ast.Name)]
                if isinstance(target, ast.Name):
                    found.setdefault(node.name, {})[target.id] = " ".join(str(text.value.value).split())
    return found


def _kind(kind: Any) -> str:
    """A type as people read it, with its bounds: `whole number, 0 to 2^53`."""
    info = msgspec.inspect.type_info(kind)
    if isinstance(info, msgspec.inspect.UnionType):
        return " or ".join(_kind_of(one) for one in info.types)
    return _kind_of(info)


def _kind_of(info: Any) -> str:
    if isinstance(info, msgspec.inspect.IntType):
        return "whole number" + (", 0 to 2^53" if (info.ge, info.le) == (0, 2**53) else "")
    if isinstance(info, msgspec.inspect.StrType):
        if info.pattern is not None:
            return "name (see above)"
        return f"text, {f'{info.min_length} to' if info.min_length else 'at most'} {info.max_length:,} characters"
    if isinstance(info, msgspec.inspect.VarTupleType):
        return f"list of {_kind_of(info.item_type)}"
    if isinstance(info, msgspec.inspect.StructType):
        return str(info.cls.__name__)
    if isinstance(info, msgspec.inspect.DictType):
        return f"at most {info.max_length} by name: {_kind_of(info.value_type)}"
    return _KINDS[type(info)]


_KINDS: dict[type[Any], str] = {
    msgspec.inspect.BoolType: "true or false",
    msgspec.inspect.FloatType: "number",
    msgspec.inspect.NoneType: "nothing",
    msgspec.inspect.EnumType: "value (see below)",
}
