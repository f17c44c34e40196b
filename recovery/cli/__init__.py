"""The `recovery` command.

May import: everything. Start reading at main.py.
"""
