"""What Alembic runs for every command: our open connection, inside our transaction, nothing of alembic.ini."""

from __future__ import annotations

from alembic import context

context.configure(connection=context.config.attributes["connection"], transactional_ddl=True)
with context.begin_transaction():
    context.run_migrations()
