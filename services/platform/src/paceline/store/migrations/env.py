"""Alembic's environment. Only `paceline.store.schema` runs it, with a connection of its own."""

from alembic import context
from sqlalchemy import Connection

import paceline.store.models  # noqa: F401 (registers the tables)
from paceline.store.base import Base


def run(connection: Connection) -> None:
    context.configure(connection=connection, target_metadata=Base.metadata, compare_type=True)
    with context.begin_transaction():
        context.run_migrations()


run(context.config.attributes["connection"])
