"""How training was left: distinguished from a `break`, and from exits that somebody has kept."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from recovery.training import current, early_exit
from recovery.training.early_exit import EarlyExit
from recovery.training.session import Session

of_types = SimpleNamespace(Session=Session)
KEPT: list[BaseException] = []


class Loop:
    """What `Session.steps` does."""

    def __init__(self) -> None:
        self.left: EarlyExit | None = None

    def steps(self) -> Iterator[int]:
        try:
            yield from range(5)
        except GeneratorExit:
            self.left = early_exit.leaving()
            raise


def leave(
    how: Callable[[], object], *, wrap: Callable[[Iterator[int]], Iterator[int]] = iter
) -> EarlyExit | None:
    loop = Loop()

    def train() -> None:
        for step in wrap(loop.steps()):
            if step == 2:
                how()
                break

    # Whatever it raises was asked for.
    with contextlib.suppress(BaseException):
        train()
    return loop.left


def wrapped(steps: Iterator[int]) -> Iterator[int]:
    """As progress bars do."""
    for number, step in enumerate(steps):
        assert number == step
        yield step


def raises(error: BaseException) -> Callable[[], object]:
    def throw() -> None:
        raise error

    return throw


@pytest.mark.parametrize("wrap", [iter, wrapped])
def test_an_exit_that_leaves_the_loop_is_seen_with_its_place(
    wrap: Callable[[Iterator[int]], Iterator[int]],
) -> None:
    left = leave(lambda: early_exit.exit_that_notes(lambda error, at: None)(0), wrap=wrap)
    assert left is not None
    assert (left.error, left.succeeds) == ("SystemExit: exit code 0 before the end of training", True)
    assert "in train" in left.traceback


def test_a_test_that_skips_itself_is_seen() -> None:
    left = leave(lambda: pytest.skip("not today"))
    assert left is not None
    assert (left.how, left.succeeds) == ("Skipped: not today", True)


@pytest.mark.parametrize("how", [lambda: None, raises(ValueError("x")), raises(KeyboardInterrupt())])
def test_a_break_and_a_mistake_are_none(how: Callable[[], object]) -> None:
    assert leave(how) is None


def keep_one() -> None:
    try:
        sys.exit(0)
    except SystemExit as error:
        KEPT.append(error)


def test_an_exit_that_somebody_has_caught_and_kept_is_none() -> None:
    keep_one()
    try:
        assert leave(lambda: None) is None
    finally:
        KEPT.clear()


@pytest.mark.parametrize(
    ("code", "how", "succeeds"),
    [
        (None, "exit code 0", True),
        (0, "exit code 0", True),
        (False, "exit code 0", True),
        (3, "exit code 3", False),
        (256, "exit code 0", True),
        ("no more data", "exit code 1", False),
    ],
)
def test_a_code_is_what_the_interpreter_makes_of_it(code: object, how: str, succeeds: bool) -> None:
    left = early_exit.seen(SystemExit(code))
    assert (left.how, left.succeeds) == (f"SystemExit: {how}", succeeds)


class NotAnException(BaseException):
    """As torch.distributed.checkpoint's CheckpointException."""


def test_what_is_no_exception_by_name_is_no_success() -> None:
    left = early_exit.seen(NotAnException("rank 1: the file is gone"))
    assert (left.how, left.succeeds) == ("NotAnException: rank 1: the file is gone", False)


@pytest.mark.parametrize(
    ("function", "takes_it"),
    [
        (lambda: "none", False),
        (lambda session: session, True),
        (lambda anything: anything, True),
        (lambda argv=None: argv, False),
        (lambda session=None: session, True),
        (lambda *, session: session, True),
        (lambda *, argv=None: argv, False),
        (lambda *words: words[0] if words else None, True),
        (lambda **named: named.get("session"), False),
    ],
)
def test_the_session_is_given_where_it_is_taken(function: Callable[..., object], takes_it: bool) -> None:
    """`argv=None` is the script's own: a session in its place is parsed as words of a command line."""
    session: Any = object()
    assert (current.call(function, session) is session) == takes_it


class SessionConfig:
    """A script's own."""


@pytest.mark.parametrize(
    ("annotation", "is_ours"),
    [
        (Session, True),
        (Session | None, True),
        ("Session | None", True),
        ("recovery.Session", True),
        ("Optional[recovery.Session]", True),
        ("of_types.Session", True),
        ("requests.Session", False),
        ("OtherSession", False),
        (SessionConfig, False),
        ("SessionConfig | None", False),
        (type("Session", (), {}), False),
        (None, False),
    ],
)
def test_an_annotation_says_what_a_parameter_with_a_default_is(annotation: object, *, is_ours: bool) -> None:
    """Requests and SQLAlchemy have a class of that name too, and a script its `SessionConfig`."""

    def train(at: object = None) -> object:
        return at

    train.__annotations__["at"] = annotation
    session: Any = object()
    assert (current.call(train, session) is session) == is_ours


def test_an_argument_is_not_moved_by_what_its_annotation_is_called() -> None:
    def train(config: SessionConfig, here: Session) -> object:
        return config, here

    config, session = SessionConfig(), object()
    assert current.call(train, cast("Session", session), config) == (config, session)


@pytest.mark.parametrize(
    ("function", "arguments", "named", "got"),
    [
        (lambda epochs: epochs, (3,), {}, 3),
        (lambda epochs=1: epochs, (), {"epochs": 3}, 3),
        (lambda session, epochs: (session, epochs), (3,), {}, ("session", 3)),
        (lambda epochs, session: (session, epochs), (3,), {}, ("session", 3)),
        (lambda epochs, session: (session, epochs), (), {"epochs": 3}, ("session", 3)),
        (lambda anything, epochs: (anything, epochs), (3,), {}, ("session", 3)),
        (lambda anything, *, epochs: (anything, epochs), (), {"epochs": 3}, ("session", 3)),
        (lambda *words: words, ("a", "b"), {}, ("a", "b")),
        (lambda session: session, (), {"session": "mine"}, "mine"),
    ],
)
def test_arguments_are_passed_through(
    function: Callable[..., object], arguments: tuple[object, ...], named: dict[str, object], got: object
) -> None:
    session: Any = "session"
    assert current.call(function, session, *arguments, **named) == got


class Watched:
    """A script's loop, seen where the script is run."""

    def __init__(self) -> None:
        self.watch = early_exit.LoopWatch()

    def steps(self) -> Iterator[int]:
        with self.watch.inside():
            try:
                yield from range(5)
            except GeneratorExit:
                self.watch.closed()
                raise

    def left_by(self, script: Callable[[], object]) -> bool:
        """Is the exit of the script one from its loop?"""
        try:
            script()
        except SystemExit as error:
            self.watch.note_exit(error)
        return self.watch.left is not None


@pytest.mark.parametrize("wrap", [iter, wrapped])
def test_an_exit_that_has_left_the_script_is_told_from_a_break_by_its_instruction(
    wrap: Callable[[Iterator[int]], Iterator[int]],
) -> None:
    watched = Watched()

    def exits() -> None:
        for step in wrap(watched.steps()):
            if step == 2:
                sys.exit(0)

    def breaks() -> int:
        for step in wrap(watched.steps()):
            if step == 2:
                break
        return 0

    def breaks_and_exits() -> None:
        breaks()
        sys.exit(0)

    def breaks_and_exits_at_once() -> None:
        for step in wrap(watched.steps()):
            if step == 2:
                break
        sys.exit(0)

    assert watched.left_by(exits)
    assert not watched.left_by(lambda: sys.exit(breaks()))
    assert not watched.left_by(breaks_and_exits)
    assert not watched.left_by(breaks_and_exits_at_once)
    assert watched.left_by(exits)
