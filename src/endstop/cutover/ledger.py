"""The ledger of the cutover: one record a turn, never changed, and what the records of a window add up to.

::

    use_ledger(SqliteTurnLedger("turns.db"))
    ...
    assert fallbacks("invocation.run", since=release).is_clean
"""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import threading
from collections import deque
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Protocol

from endstop._errors import ConfigError, EndstopError
from endstop._limits import check_count
from endstop._state import from_json, to_json
from endstop.cutover._turn_records import Body, Fallbacks, TurnRecord, check_time, spent_amounts
from endstop.cutover.switches import check_surface

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator

    from endstop.cutover.switches import Surface

__all__ = [
    "Body",
    "Fallbacks",
    "LedgerError",
    "MemoryTurnLedger",
    "SqliteTurnLedger",
    "TurnLedger",
    "TurnRecord",
    "default_ledger",
    "fallbacks",
    "open_ledger",
    "spent_amounts",
    "use_ledger",
]

MAX_RECORDS = 10_000
"""How many records a ledger in memory keeps, the newest ones."""

BUSY_SECONDS = 30.0
"""How long to wait while another process writes to the file."""


class LedgerError(EndstopError):
    """The file of a ledger cannot be read or written now; `path` is its name. What it held is not changed."""

    code: ClassVar[str] = "ledger"

    def __init__(self, path: Path, problem: object) -> None:
        self.path = path
        super().__init__(f"the ledger {str(path)!r} cannot be read or written: {problem}")


class TurnLedger(Protocol):
    """A place for records of turns. A window is from `since` up to but not including `until`; `None` is no bound."""

    def add(self, record: TurnRecord) -> None:
        """Keep the record of a turn."""
        ...

    def records(
        self, surface: Surface | None = None, *, since: datetime | None = None, until: datetime | None = None
    ) -> Iterator[TurnRecord]:
        """The records of a window that are known one by one, oldest first."""
        ...

    def fallbacks(self, surface: Surface, *, since: datetime | None = None, until: datetime | None = None) -> Fallbacks:
        """What the turns of a window add up to: `Fallbacks.of` the records, where all of them are known."""
        ...


class MemoryTurnLedger:
    """Keeps the newest `max_records` records in this process, and for ever what the older ones add up to.

    So it does not grow, and `fallbacks` is exact for a window with all of the older turns or with none. For one that
    may begin or end among them it counts the kept records, and says how many it may be without in `forgotten`. Safe to
    use from several threads at once.

    Raises:
        ConfigError: `max_records` is not a whole number, 1 or more.
    """

    def __init__(self, *, max_records: int = MAX_RECORDS) -> None:
        check_count("max_records", max_records, least=1)
        self._max_records = max_records
        self._lock = threading.Lock()
        self._records: deque[TurnRecord] = deque()
        self._older: dict[Surface, _Older] = {}

    def add(self, record: TurnRecord) -> None:
        """Keep the record of a turn."""
        with self._lock:
            self._records.append(record)
            if len(self._records) > self._max_records:
                oldest = self._records.popleft()
                older = self._older.get(oldest.surface)
                self._older[oldest.surface] = older.plus(oldest) if older else _Older.of(oldest)

    def records(
        self, surface: Surface | None = None, *, since: datetime | None = None, until: datetime | None = None
    ) -> Iterator[TurnRecord]:
        """The kept records of a window, oldest first.

        Raises:
            ConfigError: the surface has no switch, or a time has no time zone.
        """
        _check_window(surface, since, until)
        with self._lock:
            kept = list(self._records)
        return iter(sorted(_within(kept, surface, since, until), key=lambda record: record.at))

    def fallbacks(self, surface: Surface, *, since: datetime | None = None, until: datetime | None = None) -> Fallbacks:
        """What the turns of a window add up to.

        Raises:
            ConfigError: the surface has no switch, or a time has no time zone.
        """
        _check_window(surface, since, until)
        with self._lock:
            kept, older = list(self._records), self._older.get(surface)
        counts = Fallbacks.of(surface, _within(kept, surface, since, until))
        if older is None or (since and older.last < since) or (until and until <= older.first):
            return counts
        if (since is None or since <= older.first) and (until is None or older.last < until):
            return older.counts + counts
        return replace(counts, forgotten=older.counts.turns)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Older:
    """What the records add up to that are no longer kept, and the first and the last of their times."""

    counts: Fallbacks
    first: datetime
    last: datetime

    @classmethod
    def of(cls, record: TurnRecord) -> _Older:
        return cls(counts=Fallbacks.of(record.surface, [record]), first=record.at, last=record.at)

    def plus(self, record: TurnRecord) -> _Older:
        one = _Older.of(record)
        first, last = min(self.first, one.first), max(self.last, one.last)
        return _Older(counts=self.counts + one.counts, first=first, last=last)


class SqliteTurnLedger:
    """Keeps records in a SQLite file, which is made where it is not there. Threads and processes may share it.

    A record that was added outlives the process, however that ends. The file itself refuses to change or delete one.
    Each use has a connection of its own, which waits up to 30 seconds for another's write: call it from a thread
    where an event loop must not wait.

    Raises:
        ConfigError: the file cannot be made or used, holds something else, or is of a newer version.
    """

    def __init__(self, path: str | Path) -> None:
        # Absolute, so that a change of the working folder changes nothing.
        self._path = Path(path).absolute()
        try:
            with _connected(self._path, mode="rwc") as connection:
                _prepare(connection)
        except sqlite3.Error as error:
            remedy = f"use a file of its own in a folder that exists ({error})"
            raise ConfigError("path", str(path), remedy) from error
        except _NotOurs as error:
            raise ConfigError("path", str(path), str(error)) from None

    def add(self, record: TurnRecord) -> None:
        """Keep the record of a turn: it is in the file when this returns.

        Raises:
            LedgerError: the file cannot be written.
        """
        row = (record.surface, _microseconds(record.at), to_json(record, _FORMAT))
        with self._in_use() as connection:
            connection.execute("INSERT INTO turns (surface, at, document) VALUES (?, ?, ?)", row)

    def records(
        self, surface: Surface | None = None, *, since: datetime | None = None, until: datetime | None = None
    ) -> Iterator[TurnRecord]:
        """The records of a window, oldest first, read a page at a time.

        Raises:
            ConfigError: the surface has no switch, or a time has no time zone.
            LedgerError: the file cannot be read.
            StateError: a record is damaged.
        """
        _check_window(surface, since, until)
        lowest = _FIRST if since is None else _microseconds(since)
        return self._pages(surface, lowest, _LAST if until is None else _microseconds(until))

    def fallbacks(self, surface: Surface, *, since: datetime | None = None, until: datetime | None = None) -> Fallbacks:
        """What the turns of a window add up to.

        Raises:
            ConfigError: the surface has no switch, or a time has no time zone.
            LedgerError: the file cannot be read.
            StateError: a record is damaged.
        """
        return Fallbacks.of(surface, self.records(surface, since=since, until=until))

    def _pages(self, surface: Surface | None, lowest: int, highest: int) -> Iterator[TurnRecord]:
        """No connection is open while the reader works: one that stops reading leaves nothing behind."""
        at, after = lowest, 0
        while True:
            with self._in_use() as connection:
                page = connection.execute(_PAGE, (at, after, highest, surface, surface, _PAGE_SIZE)).fetchall()
            for at, after, document in page:  # noqa: B007  the last row is where the next page begins
                yield from_json(TurnRecord, _FORMAT, document)
            if len(page) < _PAGE_SIZE:
                return

    @contextlib.contextmanager
    def _in_use(self) -> Generator[sqlite3.Connection]:
        try:
            with _connected(self._path, mode="rw") as connection:
                yield connection
        except sqlite3.Error as error:
            raise LedgerError(self._path, error) from error


_FORMAT = "turn"
_PAGE_SIZE = 1_000
_PAGE = """
SELECT at, id, document FROM turns
WHERE (at, id) > (?, ?) AND at < ? AND (? IS NULL OR surface = ?)
ORDER BY at, id LIMIT ?
"""
_APPLICATION_ID = int.from_bytes(b"ends", "big")
_SCHEMA_VERSION = 1
_SCHEMA = (
    f"PRAGMA application_id = {_APPLICATION_ID}",
    f"PRAGMA user_version = {_SCHEMA_VERSION}",
    """CREATE TABLE turns (
        id INTEGER PRIMARY KEY CHECK (id > 0), surface TEXT NOT NULL, at INTEGER NOT NULL, document TEXT NOT NULL
    )""",
    "CREATE INDEX turns_by_time ON turns (at)",
    """CREATE TRIGGER turns_are_not_changed BEFORE UPDATE ON turns
    BEGIN SELECT RAISE(ABORT, 'the ledger is append-only: no turn can be changed'); END""",
    """CREATE TRIGGER turns_are_not_deleted BEFORE DELETE ON turns
    BEGIN SELECT RAISE(ABORT, 'the ledger is append-only: no turn can be deleted'); END""",
    # A row that replaces another fires no trigger of a deletion.
    """CREATE TRIGGER turns_are_not_replaced BEFORE INSERT ON turns
    WHEN EXISTS (SELECT 1 FROM turns WHERE id = NEW.id)
    BEGIN SELECT RAISE(ABORT, 'the ledger is append-only: no turn can be replaced'); END""",
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST, _LAST = -(2**63), 2**63 - 1


class _NotOurs(Exception):
    """A file is no ledger that can be used here; the text is what to do about it."""


@contextlib.contextmanager
def _connected(path: Path, *, mode: str) -> Generator[sqlite3.Connection]:
    """A connection for one use: none is shared by threads or carried into a forked process."""
    connection = sqlite3.connect(f"{path.as_uri()}?mode={mode}", uri=True, timeout=BUSY_SECONDS, isolation_level=None)
    with contextlib.closing(connection):
        yield connection


def _prepare(connection: sqlite3.Connection) -> None:
    """Make the tables of a new file. A file of something else is left as it is."""
    with _transaction(connection, "BEGIN"):
        is_new = _is_new(connection)
    if is_new:
        with _transaction(connection, "BEGIN IMMEDIATE"):
            # Another process may have made them meanwhile.
            for statement in _SCHEMA if _is_new(connection) else ():
                connection.execute(statement)
    # Readers and writers then wait less for each other. SQLite refuses while others are at work, and does not wait for
    # them; all is right without it, and the next to open the file tries again.
    with contextlib.suppress(sqlite3.OperationalError):
        connection.execute("PRAGMA journal_mode = WAL")


@contextlib.contextmanager
def _transaction(connection: sqlite3.Connection, begin: str) -> Generator[None]:
    """What is read in it is of one moment, and what is written is all there or not at all."""
    connection.execute(begin)
    yield
    connection.execute("COMMIT")


def _is_new(connection: sqlite3.Connection) -> bool:
    """Whether a file is empty.

    Raises:
        _NotOurs: it is neither empty nor a ledger that can be used here.
    """
    ((application,),) = connection.execute("PRAGMA application_id").fetchall()
    ((version,),) = connection.execute("PRAGMA user_version").fetchall()
    ((tables,),) = connection.execute("SELECT COUNT(*) FROM sqlite_master").fetchall()
    if not application and not tables:
        return True
    if application != _APPLICATION_ID:
        raise _NotOurs("it is a database of something else, so use a file of its own")
    if version != _SCHEMA_VERSION:
        raise _NotOurs(f"its schema has version {version}, so use the endstop that wrote it, or a newer one")
    return False


def _check_window(surface: Surface | None, since: datetime | None, until: datetime | None) -> None:
    if surface is not None:
        check_surface(surface)
    check_time("since", since)
    check_time("until", until)


def _within(
    records: Iterable[TurnRecord], surface: Surface | None, since: datetime | None, until: datetime | None
) -> list[TurnRecord]:
    """The records of a window."""
    return [
        record
        for record in records
        if (surface is None or record.surface == surface)
        and (since is None or since <= record.at)
        and (until is None or record.at < until)
    ]


def _microseconds(time: datetime) -> int:
    """A time as the exact number that stands for it in the file."""
    return (time - _EPOCH) // timedelta(microseconds=1)


def open_ledger(path: str | Path) -> SqliteTurnLedger:
    """The ledger in a file that is there. `SqliteTurnLedger` makes one where there is none.

    Raises:
        ConfigError: there is no such file, or it cannot be used, holds something else, or is of a newer version.
    """
    if not Path(path).is_file():
        raise ConfigError("path", str(path), "name the file that SqliteTurnLedger(path) wrote")
    return SqliteTurnLedger(path)


_log = logging.getLogger("endstop.cutover")

_default: TurnLedger = MemoryTurnLedger()


def default_ledger() -> TurnLedger:
    """The ledger of this process: one in memory, until `use_ledger` names another."""
    return _default


def use_ledger(ledger: TurnLedger) -> TurnLedger:
    """Make this the ledger of the process, for all turns from now on. Returns the one before.

    Raises:
        ConfigError: it has no `add`, `records` and `fallbacks`.
    """
    global _default
    methods = [getattr(ledger, name, None) for name in ("add", "records", "fallbacks")]
    if isinstance(ledger, type) or not all(map(callable, methods)):
        raise ConfigError("ledger", ledger, "use an object with `add`, `records` and `fallbacks`")
    before, _default = _default, ledger
    return before


def keep(record: TurnRecord, ledger: TurnLedger | None) -> None:
    """Leave the record of a turn in the ledger, `None` for that of the process.

    The turn is over: a ledger that cannot be written loses the record, which the log tells, and changes nothing else.
    """
    try:
        (default_ledger() if ledger is None else ledger).add(record)
    except Exception as problem:
        _log.warning(
            "a turn of %s served by %s is not recorded: %s", record.surface, record.served_by, problem, exc_info=True
        )


def fallbacks(
    surface: Surface,
    *,
    ledger: TurnLedger | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
) -> Fallbacks:
    """What the turns of a surface add up to: how many fell back, why, and how many ran on the kernel.

    The window is from `since` up to but not including `until`; `None` is no bound. `ledger` is by default that of the
    process. A migration is clean when `fallbacks(surface, since=...).is_clean`.

    Raises:
        ConfigError: the surface has no switch, or a time has no time zone.
        LedgerError: the ledger cannot be read.
    """
    return (default_ledger() if ledger is None else ledger).fallbacks(surface, since=since, until=until)
