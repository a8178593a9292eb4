"""Alembic's entry for developers (``alembic revision``); the server migrates through ``store.migrate``."""

from __future__ import annotations

from alembic import context

from runtime.server.store.tables import metadata


def run() -> None:
    import sqlalchemy as sa

    engine = sa.create_engine(context.config.get_main_option("sqlalchemy.url") or "sqlite://")
    with engine.connect() as connection:
        context.configure(connection=connection, target_metadata=metadata, render_as_batch=True)
        with context.begin_transaction():
            context.run_migrations()


run()
