"""`python -m recovery` is the `recovery` command."""

from recovery.cli.main import main

main()
