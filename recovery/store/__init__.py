"""The persisted state: one SQLite file per process, one writer per file, every row with its digest.

What was acknowledged is on disk (WAL + FULL, asserted per connection); what cannot be trusted is refused with its name, and nothing is
ever deleted or repaired. May import: clock, core, errors; nobody else may know SQLAlchemy, Alembic or filelock.
Start reading at repository.py (what an owner does), then engine.py (how a file survives); from outside: reader.py, then snapshot.py.
"""
