from __future__ import annotations

import typing
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recovery.core import messages as m
from recovery.core.ids import Generation, RequestId
from recovery.core.message_fields import NODE_ID_PATTERN
from recovery.core.messages import FromNode, FromScheduler
from recovery.errors import ProtocolError
from recovery.transport import codec
from tests.transport.wire import heartbeat, register

NODE_TYPES: tuple[type[msgspec.Struct], ...] = typing.get_args(FromNode)
SCHEDULER_TYPES: tuple[type[msgspec.Struct], ...] = typing.get_args(FromScheduler)
NUMBERS = st.integers(0, 2**53)
NODE_IDS = st.from_regex(NODE_ID_PATTERN)
BIG = 1 << 20


def text(limit: int, least: int = 0) -> st.SearchStrategy[str]:
    return st.text(st.characters(exclude_categories=["Cs"]), min_size=least, max_size=min(limit, 50))


def values(kind: msgspec.inspect.Type) -> st.SearchStrategy[Any]:
    """Values that a field of this kind allows, from msgspec's own reading of the annotations."""
    found = kind
    if isinstance(found, msgspec.inspect.UnionType):
        return st.one_of(*(values(each) for each in found.types))
    if isinstance(found, msgspec.inspect.VarTupleType):
        return st.lists(values(found.item_type), max_size=3).map(tuple)
    if isinstance(found, msgspec.inspect.DictType):
        return st.dictionaries(values(found.key_type), values(found.value_type), max_size=3)
    if isinstance(found, msgspec.inspect.StructType):
        return structs(found.cls)
    if isinstance(found, msgspec.inspect.EnumType):
        return st.sampled_from(list(found.cls))
    if isinstance(found, msgspec.inspect.StrType):
        return NODE_IDS if found.pattern else text(found.max_length or 50, found.min_length or 0)
    simple: dict[type[msgspec.inspect.Type], st.SearchStrategy[Any]] = {
        msgspec.inspect.IntType: NUMBERS,
        msgspec.inspect.FloatType: st.floats(allow_nan=False),
        msgspec.inspect.BoolType: st.booleans(),
        msgspec.inspect.NoneType: st.none(),
    }
    return simple[type(found)]


def structs(cls: type[Any]) -> st.SearchStrategy[Any]:
    info = msgspec.inspect.type_info(cls)
    assert isinstance(info, msgspec.inspect.StructType)
    return st.builds(cls, **{field.name: values(field.type) for field in info.fields})


@pytest.mark.parametrize("kind", NODE_TYPES, ids=lambda kind: str(kind.__struct_config__.tag))
def test_a_nodes_message_comes_out_as_it_went_in(kind: type[msgspec.Struct]) -> None:
    @given(structs(kind))
    def check(message: FromNode) -> None:
        assert codec.decode_from_node(codec.encode(message), frame_bytes_max=BIG) == message

    check()


@pytest.mark.parametrize("kind", SCHEDULER_TYPES, ids=lambda kind: str(kind.__struct_config__.tag))
def test_a_schedulers_message_comes_out_as_it_went_in(kind: type[msgspec.Struct]) -> None:
    @given(structs(kind))
    def check(message: FromScheduler) -> None:
        assert codec.decode_from_scheduler(codec.encode(message), peer="s") == message

    check()


@given(st.binary(max_size=300))
def test_random_bytes_are_only_ever_a_protocol_error(frame: bytes) -> None:
    for decode in (
        lambda: codec.decode_from_node(frame, frame_bytes_max=BIG),
        lambda: codec.decode_from_scheduler(frame, peer="s"),
    ):
        try:
            message = decode()
        except ProtocolError:
            continue
        assert isinstance(message, (*NODE_TYPES, *SCHEDULER_TYPES))


@given(
    st.one_of(*(structs(kind) for kind in NODE_TYPES)),
    st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=5),
    st.integers(0, 10_000),
)
def test_a_mutated_message_is_a_protocol_error_or_a_valid_message(
    message: FromNode, flips: list[tuple[int, int]], cut: int
) -> None:
    frame = bytearray(codec.encode(message))
    for position, value in flips:
        frame[position % len(frame)] = value
    for broken in (bytes(frame), bytes(frame[: cut % len(frame)])):
        try:
            decoded = codec.decode_from_node(broken, frame_bytes_max=BIG)
        except ProtocolError:
            continue
        assert codec.decode_from_node(codec.encode(decoded), frame_bytes_max=BIG) == decoded


def nested(depth: int) -> bytes:
    """A heartbeat with an unknown field that holds arrays in arrays."""
    return b"\x82\xa4type\xa9heartbeat\xa1x" + b"\x91" * depth + b"\xc0"


def changed(**fields: object) -> bytes:
    plain: dict[str, object] = {"type": "heartbeat", **msgspec.structs.asdict(heartbeat())}
    return msgspec.msgpack.encode({**plain, **fields})


@pytest.mark.parametrize(
    ("frame", "says"),
    [
        (b"", "an empty message"),
        (b"GET / HTTP/1.1", "no message of ours"),
        (b"\xdd\xff\xff\xff\xff", "no message of ours"),
        (b"\xdf\xff\xff\xff\xff", "no message of ours"),
        (b"\xdb\xff\xff\xff\xffa", "no message of ours"),
        (nested(100_000), "no message of ours"),
        (msgspec.msgpack.encode({"type": "shutdown"}), "'shutdown'"),
        (msgspec.msgpack.encode({"type": "admitted"}), "'admitted'"),
        (msgspec.msgpack.encode({"type": "heartbeat"}), "sequence"),
        (changed(step=-1), "$.step"),
        (changed(step=2**53 + 1), "$.step"),
        (changed(step=True), "$.step"),
        (changed(step=1.5), "$.step"),
        (changed(step="1"), "$.step"),
        (changed(step=None), "$.step"),
        (codec.encode(heartbeat()) + b"\x00", "no message of ours"),
        (codec.encode(register("../a")), "$.node_id"),
        (codec.encode(register("a\n")), "$.node_id"),
        (codec.encode(register("")), "$.node_id"),
        (codec.encode(register("a" * 65)), "$.node_id"),
        (codec.encode(register(host="h" * 1_025)), "$.host"),
    ],
    ids=lambda value: repr(value)[:24],
)
def test_what_is_no_message_of_ours_is_named(frame: bytes, says: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        codec.decode_from_node(frame, frame_bytes_max=BIG, peer="10.0.0.7")

    assert says in str(caught.value)
    assert caught.value.parts["peer"] == "10.0.0.7"


REQUESTS = tuple(kind for kind in NODE_TYPES if "request_id" in kind.__struct_fields__)


@pytest.mark.parametrize("kind", REQUESTS, ids=lambda kind: str(kind.__struct_config__.tag))
def test_a_request_without_a_name_is_refused(kind: type[msgspec.Struct]) -> None:
    """Its answer would be taken for that of every message that has none: heartbeats and broken collectives were not heard any more."""

    @settings(max_examples=3)
    @given(structs(kind))
    def check(message: FromNode) -> None:
        nameless = msgspec.structs.replace(message, request_id=RequestId(""))
        with pytest.raises(ProtocolError, match=r"length >= 1.*\$\.request_id"):
            codec.decode_from_node(codec.encode(nameless), frame_bytes_max=BIG)

    check()


def test_a_message_one_byte_over_the_limit_is_refused_and_one_at_the_limit_is_not() -> None:
    frame = codec.encode(heartbeat())

    assert codec.decode_from_node(frame, frame_bytes_max=len(frame)) == heartbeat()
    with pytest.raises(
        ProtocolError, match=f"a message of {len(frame)} bytes, at most {len(frame) - 1} are allowed"
    ):
        codec.decode_from_node(frame, frame_bytes_max=len(frame) - 1)


def test_what_a_peer_wrote_cannot_break_a_log_line() -> None:
    frame = msgspec.msgpack.encode({"type": "evil\n2026 ERROR event=fake\x1b[31m" + "x" * 60_000})

    with pytest.raises(ProtocolError) as caught:
        codec.decode_from_node(frame, frame_bytes_max=BIG)

    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 500


def test_every_sentence_for_people_is_known_to_the_encoder() -> None:
    names = {"reason", "error", "traceback", "because", "ends_because", "obstacle"}

    for kind in (*NODE_TYPES, *SCHEDULER_TYPES):
        sentences = {field for field in kind.__struct_fields__ if field in names}
        assert sentences == {field for field, _ in codec.prose_of(kind)}, kind


def test_a_traceback_of_any_length_reaches_the_scheduler_with_its_last_line() -> None:
    failure = m.Failure(
        request_id=RequestId("r"),
        generation=Generation(1),
        step=3,
        error="CUDA " * 1_000 + "\ud800",
        traceback='File "train.py"\n' * 5_000 + "ValueError: é",
    )

    arrived = codec.decode_from_node(codec.encode(failure), frame_bytes_max=65_536)

    assert isinstance(arrived, m.Failure)
    assert arrived.traceback.endswith("ValueError: é")
    assert arrived.traceback.startswith("[cut] ")
    assert len(arrived.traceback) == 16_384
    assert len(arrived.error) == 1_024


def unbounded(kind: msgspec.inspect.Type, where: str) -> list[str]:
    """Fields in which a peer could send more than can be stored, from msgspec's own reading of the annotations."""
    if isinstance(kind, msgspec.inspect.UnionType):
        return [found for each in kind.types for found in unbounded(each, where)]
    if isinstance(kind, msgspec.inspect.VarTupleType):
        return unbounded(kind.item_type, where)
    if isinstance(kind, msgspec.inspect.DictType):
        return [*unbounded(kind.key_type, where), *unbounded(kind.value_type, where)]
    if isinstance(kind, msgspec.inspect.StructType):
        return [found for field in kind.fields for found in unbounded(field.type, f"{where}.{field.name}")]
    if isinstance(kind, msgspec.inspect.IntType):
        return [] if (kind.ge, kind.le) == (0, 2**53) else [where]
    if isinstance(kind, msgspec.inspect.StrType):
        return [] if kind.max_length or kind.pattern else [where]
    return []


def test_every_number_and_text_that_a_node_sends_is_bounded() -> None:
    found = [
        name for kind in NODE_TYPES for name in unbounded(msgspec.inspect.type_info(kind), kind.__name__)
    ]
    assert found == []
