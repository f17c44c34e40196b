"""Code and documents use the words of the field; a file name means one thing; a comment has a line of its own."""

from __future__ import annotations

import io
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from tests.house.files import Finding, name_of, program_files, report, text_of
from tests.house.plain_words import words_found

PARALLELS: dict[str, str] = {
    "__init__.py": "Python's own name for a package's face",
    "barrier.py": "the scheduler's side of a stop of all ranks, and a worker's",
    "connection.py": "the machine's view of the connection in core/worker, the connection itself in transport",
    "effects.py": "what every machine can ask for in core, and what one of them can",
    "executor.py": "carries out the effects of one machine: the scheduler's, the worker's",
    "live.py": "whose memory a plan goes to in core/policy, what the scheduler's machine does by it",
    "machine.py": "the two machines",
    "reader.py": "reads the settings in config, a store in store",
    "registration.py": "the table of answers in core/policy, what the scheduler's machine does by it",
    "retention.py": "which checkpoints go in core/policy, and how their files go",
    "service.py": "the process around one machine: the scheduler's, the worker's",
    "settings.py": "the settings in config, and what can be wrong with them in errors",
    "state.py": "what a scheduler's machine knows; what a framework's training consists of",
    "stimuli.py": "what one of the machines can be given",
    "takeover.py": "the tables of who takes over a rank in core/policy, what the scheduler's machine does by them",
    "trainer.py": "a library's Trainer that is recovered: of Lightning, of transformers",
}
"""File name -> what its files have in common, where several packages have one."""
ALLOWED_BEHIND_CODE = re.compile(r"# (noqa|type: ignore|pragma|fmt:)")


def test_code_and_documents_use_plain_words() -> None:
    report(words_found())


def test_a_file_name_means_one_thing() -> None:
    places: dict[str, list[Path]] = defaultdict(list)
    for path in program_files():
        if path.parent.name != "cli" or path.name == "__init__.py":
            # A file of cli has the name of its command, which is often the name of what it shows.
            places[path.name].append(path)

    report(
        Finding(
            at[-1],
            1,
            f"{name_of(at[0])} has this name too",
            f"rename one, or say in {__name__} what they share",
        )
        for name, at in places.items()
        if len(at) > 1 and name not in PARALLELS
    )
    assert [name for name in PARALLELS if len(places[name]) < 2] == []


def test_no_comment_stands_behind_code() -> None:
    report(
        Finding(path, line, f"{comment} stands behind code", "put it on a line of its own above")
        for path in program_files()
        for line, comment in _behind_code(path)
    )


def _behind_code(path: Path) -> Iterator[tuple[int, str]]:
    source = text_of(path)
    if not re.search(r"^[^\n#]*\S[^\n#]*#", source, re.MULTILINE):
        # Only a file that may hold one is worth its tokens.
        return
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if (
            token.type == tokenize.COMMENT
            and token.line[: token.start[1]].strip()
            and not ALLOWED_BEHIND_CODE.match(token.string)
        ):
            yield token.start[0], token.string
