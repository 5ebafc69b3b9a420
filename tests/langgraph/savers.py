"""Checkpointers to run graphs on: in memory, in a SQLite file, and in Postgres, which is found or started."""

from __future__ import annotations

import contextlib
import inspect
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any
from uuid import uuid4

import aiosqlite
import psycopg
import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

KINDS = ["memory", "sqlite", "postgres"]

_RUNNING = "host=127.0.0.1 port=5432 dbname=test connect_timeout=3"


class Savers:
    """Opens checkpointers of one kind, all on the same data: as several processes would."""

    def __init__(self, kind: str, folder: Path, dsn: str | None) -> None:
        self.kind = kind
        self._path = str(folder / "threads.sqlite")
        self._dsn = dsn
        self._memory = InMemorySaver()

    @contextlib.contextmanager
    def open(self) -> Iterator[Any]:
        """A checkpointer for sync code."""
        if self.kind == "memory":
            yield self._memory
        elif self.kind == "sqlite":
            with SqliteSaver.from_conn_string(self._path) as saver:
                yield saver
        else:
            assert self._dsn is not None
            with PostgresSaver.from_conn_string(self._dsn) as postgres:
                postgres.setup()
                yield postgres

    @contextlib.asynccontextmanager
    async def aopen(self) -> AsyncIterator[Any]:
        """A checkpointer for async code."""
        if self.kind == "memory":
            yield self._memory
        elif self.kind == "sqlite":
            if not hasattr(aiosqlite.Connection, "is_alive") and "is_alive" in inspect.getsource(AsyncSqliteSaver):
                pytest.skip(
                    f"langgraph-checkpoint-sqlite {version('langgraph-checkpoint-sqlite')} needs an older aiosqlite"
                )
            async with AsyncSqliteSaver.from_conn_string(self._path) as saver:
                yield saver
        else:
            assert self._dsn is not None
            async with AsyncPostgresSaver.from_conn_string(self._dsn) as postgres:
                await postgres.setup()
                yield postgres


@contextlib.contextmanager
def postgres() -> Iterator[str]:
    """A schema of its own in the server that runs on this machine, else in one that is started for it."""
    with contextlib.ExitStack() as stack:
        server = _RUNNING if _answers(_RUNNING) else stack.enter_context(_started())
        schema = f"endstop_{uuid4().hex}"
        with psycopg.connect(server, autocommit=True) as connection:
            connection.execute(f"create schema {schema}".encode())
        try:
            yield f"{server} options='-c search_path={schema}'"
        finally:
            with psycopg.connect(server, autocommit=True) as connection:
                connection.execute(f"drop schema {schema} cascade".encode())


@contextlib.contextmanager
def _started() -> Iterator[str]:
    programs = [*Path("/usr/lib/postgresql").glob("*/bin"), *Path("/usr/local/pgsql").glob("bin")]
    initdb = shutil.which("initdb") or next(
        (str(one / "initdb") for one in programs if (one / "initdb").exists()), None
    )
    if initdb is None:
        pytest.skip("no Postgres: none answers on 127.0.0.1:5432, and initdb is not installed")
    with (
        tempfile.TemporaryDirectory(prefix="endstop-postgres-", ignore_cleanup_errors=True) as folder,
        _serving(Path(initdb), Path(folder)) as dsn,
    ):
        yield dsn


@contextlib.contextmanager
def _serving(initdb: Path, folder: Path) -> Iterator[str]:
    # A database server refuses to run as root.
    user = "postgres" if os.geteuid() == 0 else pwd.getpwuid(os.geteuid()).pw_name
    shutil.chown(folder, user)
    data, programs_at = folder / "data", initdb.parent

    def run(*command: str) -> None:
        subprocess.run(command, check=True, capture_output=True, user=user if os.geteuid() == 0 else None, cwd=folder)

    run(str(initdb), "-D", str(data), "-A", "trust", "-U", "endstop", "--no-sync")
    options = f"-k {folder} -c listen_addresses='' -c fsync=off"
    run(str(programs_at / "pg_ctl"), "-D", str(data), "-o", options, "-l", str(folder / "log"), "-w", "start")
    try:
        yield f"host={folder} user=endstop dbname=postgres"
    finally:
        run(str(programs_at / "pg_ctl"), "-D", str(data), "-m", "immediate", "stop")


def _answers(dsn: str) -> bool:
    try:
        psycopg.connect(dsn).close()
    except psycopg.OperationalError:
        return False
    return True
