"""The history of the schema, applied by itself at open.

Alembic costs 150 ms to import, so it is imported only when a file really is of an older release:
a file's revision is read by plain SQL, and a new file is made from models.py at once (a test proves that
both ways give the same schema). A new revision: add `versions/<nnnn>_<what>.py` and its number to `REVISIONS`.
"""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import Connection, select

from recovery.errors import StoreError, StoreVersionError
from recovery.store.models import VERSION

REVISIONS = ("0001", "0002", "0003", "0004", "0005", "0006", "0007", "0008")
"""Every revision this release knows, oldest first."""

VERSIONS = Path(__file__).parent / "versions"


def migrate(
    connection: Connection,
    path: Path,
    *,
    revisions: tuple[str, ...] = REVISIONS,
    versions: Path = VERSIONS,
) -> None:
    """Bring the open file to the newest known revision, in one transaction. Does nothing when it is there already.

    Args:
        connection: the owner's connection, in no transaction.
        path: the file, for errors.
        revisions: the known revisions, oldest first.
        versions: where the files of them lie.

    Raises:
        StoreVersionError: the file's revision is none of `revisions`: a newer release wrote it.
        StoreError: the file does not say its revision.
    """
    with connection.begin():
        found = connection.execute(select(VERSION.c.version_num)).scalars().all()
        if len(found) != 1:
            raise StoreError(
                "STORE_CORRUPT", path=str(path), reason=f"it names {len(found)} schema revisions instead of 1"
            )
        if found[0] not in revisions:
            raise StoreVersionError(path=str(path), found=found[0], known=revisions[-1])
        if found[0] != revisions[-1]:
            upgrade(connection, versions)


def upgrade(connection: Connection, versions: Path = VERSIONS) -> None:
    """Run every migration that is still missing, inside the transaction of `connection`."""
    from alembic import command  # noqa: PLC0415 - 150 ms, paid only when a file is of an older release
    from alembic.config import Config  # noqa: PLC0415 - as above

    def escaped(directory: Path) -> str:
        # '%' is a reference in Alembic's options.
        return str(directory).replace("%", "%%")

    config = Config()
    config.set_main_option("script_location", escaped(Path(__file__).parent))
    config.set_main_option("path_separator", "newline")
    config.set_main_option("version_locations", escaped(versions))
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
