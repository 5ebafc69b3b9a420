"""Where it is kept what a run of a graph has spent, so that it counts on after a pause, a crash or a takeover."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal, Protocol

from langgraph.checkpoint.base import empty_checkpoint

from endstop._errors import ConfigError
from endstop._limits import LimitHit
from endstop._loops import LoopState
from endstop._state import from_json, to_json
from endstop.langgraph import _compat
from endstop.langgraph._limits import GraphSpent
from endstop.langgraph._procedures import Call, UserCall

if TYPE_CHECKING:
    from collections.abc import Awaitable, Mapping

    from langchain_core.runnables import RunnableConfig
    from langgraph.checkpoint.base import BaseCheckpointSaver
    from langgraph.store.base import BaseStore

    from endstop.langgraph._procedures import Action

_NAMESPACE = "endstop"
_RECORD_ID = "00000000-0000-0000-0000-000000000000"
_FORMAT = "graph-run"


class Ledger(Protocol):
    """A place of your own for the records of runs. In a graph that is run by async methods, both may be async."""

    def load(self, key: str) -> str | Awaitable[str | None] | None:
        """The document that was last saved under the key, or `None`. The key begins with the thread's id."""
        ...

    def save(self, key: str, document: str) -> Awaitable[None] | None:
        """Keep the document in place of the one before."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What is kept of the newest run on a thread.

    `run` is what it has spent, `thread` what all runs of the thread have. `status` is `open` while it can be
    continued (it is paused, or was broken off), `cut` where a limit ended it: `hit` says which, and `stopped_at` the
    checkpoint that it had reached. `after` is the id of the last message that was there before it, `effects` are the
    tools that were started and are not read-only. `loops` is what the loop detector remembers of the graph's calls,
    the newest of which is `observed`, and `node_loops` what it remembers of its nodes.
    """

    run: GraphSpent
    thread: GraphSpent = field(default_factory=GraphSpent)
    status: Literal["open", "completed", "cut"] = "open"
    hit: LimitHit | None = None
    stopped_at: str | None = None
    after: str | None = None
    effects: tuple[str, ...] = ()
    loops: LoopState = field(default_factory=LoopState)
    observed: str | None = None
    node_loops: LoopState = field(default_factory=LoopState)


class MemoryLedger:
    """Keeps records in this process, one of each thread for as long as it lives. It may serve any number of graphs."""

    def __init__(self) -> None:
        self._documents: dict[str, str] = {}

    def load(self, key: str) -> str | None:
        """The document that was last saved under the key, or `None`."""
        return self._documents.get(key)

    def save(self, key: str, document: str) -> None:
        """Keep the document in place of the one before."""
        self._documents[key] = document


def check_ledger(ledger: object) -> None:
    """Check a place of the caller's own; callers are not all type-checked.

    Raises:
        ConfigError: it has no `load` and `save`.
    """
    methods = (getattr(ledger, "load", None), getattr(ledger, "save", None))
    if ledger is not None and (isinstance(ledger, type) or not all(map(callable, methods))):
        raise ConfigError("ledger", ledger, "use an object with the methods `load(key)` and `save(key, document)`")


class Place(Protocol):
    """Where the record of one thread is kept."""

    def read(self) -> Action:
        """Gives the document, or `None`."""
        ...

    def write(self, document: str) -> Action:
        """Replaces it."""
        ...


def place_of(
    graph: _compat.AnyPregel, config: Mapping[str, Any], ledger: Ledger | None, memory: MemoryLedger | None
) -> Place | None:
    """Where the record of this run is kept; `None` where nothing could go on from it.

    That is the ledger given, else the graph's checkpointer, else its store, else `memory`.
    """
    thread, namespace = _compat.thread_of(config)
    if thread is None:
        return None
    saver = _compat.saver_of(graph, config)
    if ledger is None and saver is not None:
        return _AtCheckpointer(saver, thread, namespace)
    key = f"{thread}/{namespace}" if namespace else thread
    if ledger is None and graph.store is not None:
        return _InStore(graph.store, key)
    kept = ledger if ledger is not None else memory
    return _InLedger(kept, key) if kept is not None else None


def read_record(document: object) -> Record | None:
    """The record in a document; `None` where there is none.

    Raises:
        StateError: it is no such document, or of a newer version.
    """
    return from_json(Record, _FORMAT, document) if isinstance(document, str | bytes) else None


def write_record(record: Record) -> str:
    """The record as a document."""
    return to_json(record, _FORMAT)


class _AtCheckpointer:
    """A row of its own in the thread: deleting the thread deletes it, and the graph's history does not show it."""

    def __init__(self, saver: BaseCheckpointSaver[Any], thread: str, namespace: str) -> None:
        self._saver = saver
        place = f"{_NAMESPACE}/{namespace}" if namespace else _NAMESPACE
        self._config: RunnableConfig = {"configurable": {"thread_id": thread, "checkpoint_ns": place}}

    def read(self) -> Action:
        return Call(self._read, self._aread)

    def write(self, document: str) -> Action:
        checkpoint = empty_checkpoint() | {"id": _RECORD_ID, "ts": datetime.now(UTC).isoformat()}
        metadata: dict[str, object] = {"source": "update", "step": -1, "parents": {}, _NAMESPACE: document}
        return Call(self._saver.put, self._saver.aput, self._config, checkpoint, metadata, {})

    def _read(self) -> object:
        found = self._saver.get_tuple(self._config)
        return found.metadata.get(_NAMESPACE) if found is not None else None

    async def _aread(self) -> object:
        found = await self._saver.aget_tuple(self._config)
        return found.metadata.get(_NAMESPACE) if found is not None else None


class _InStore:
    def __init__(self, store: BaseStore, key: str) -> None:
        self._store = store
        self._key = key

    def read(self) -> Action:
        return Call(self._read, self._aread)

    def write(self, document: str) -> Action:
        return Call(self._store.put, self._store.aput, (_NAMESPACE,), self._key, {_FORMAT: document})

    def _read(self) -> object:
        item = self._store.get((_NAMESPACE,), self._key)
        return item.value.get(_FORMAT) if item is not None else None

    async def _aread(self) -> object:
        item = await self._store.aget((_NAMESPACE,), self._key)
        return item.value.get(_FORMAT) if item is not None else None


class _InLedger:
    def __init__(self, ledger: Ledger, key: str) -> None:
        self._ledger = ledger
        self._key = key

    def read(self) -> Action:
        return UserCall("ledger", self._ledger.load, self._key)

    def write(self, document: str) -> Action:
        return UserCall("ledger", self._ledger.save, self._key, document)
