"""The persisted state: one SQLite file per process, one writer per file, every row with its digest.

This room may import core and errors; nobody else may know SQLAlchemy, Alembic or filelock.
What was acknowledged is on disk (WAL + FULL, asserted per connection); what cannot be trusted is refused
with its name, and nothing is ever deleted or mended. Start reading at repository.py, then engine.py.
"""
