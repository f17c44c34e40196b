"""How patient this process is with its name server.

c10d asks for the name of every address that it might log, and asks for 127.0.0.1 as ::ffff:127.0.0.1, which /etc/hosts does not
answer: so every rank of a world costs some questions to a name server, and each lost datagram the resolver's whole timeout, 5 s.
"""

from __future__ import annotations

import os


def ask_again_soon() -> None:
    """Ask a silent name server again after 1 s, five times, instead of after 5 s, twice: a slow one still answers.

    glibc reads this once, before its first question; a user's own RES_OPTIONS stay.
    """
    os.environ.setdefault("RES_OPTIONS", "timeout:1 attempts:5")  # noqa: TID251 - the resolver reads it there only
