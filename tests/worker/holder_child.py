"""A node that serves what lies in a directory until it is killed: a script, no test. usage: holder_child.py DIRECTORY TOKEN; prints its address."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

from recovery.transport.job_token import Authenticator, JobToken
from recovery.worker.file_exchange import FileExchange
from recovery.worker.held_copies import Copies


def main() -> None:
    copies = Copies(Path(sys.argv[1]), "w0")
    exchange = FileExchange(copies.served, lambda: Authenticator(JobToken(sys.argv[2])), lambda: None)
    print(exchange.address("127.0.0.1"), flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main()
