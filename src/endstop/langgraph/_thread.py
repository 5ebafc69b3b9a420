"""The thread of a run: the record of what it has spent, and its stored state, mended where the run was cut."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from langgraph.constants import END
from langgraph.types import Command, StateUpdate

from endstop._budget import allowed_by_limit
from endstop._errors import ResumeError
from endstop._loops import LoopState
from endstop._results import limit_reason
from endstop.langgraph import _compat
from endstop.langgraph._ledger import MemoryLedger, Record, place_of, read_record, write_record
from endstop.langgraph._procedures import Call

if TYPE_CHECKING:
    from collections.abc import Mapping

    from langchain_core.runnables import RunnableConfig

    from endstop._limits import PlanLimits
    from endstop.langgraph._ledger import Ledger
    from endstop.langgraph._procedures import Procedure

_RESET_BY_LANGGRAPH = ("recursion_limit", "loop")


class Thread:
    """The thread that a run is on, where it is on one."""

    def __init__(
        self,
        graph: _compat.AnyPregel,
        config: RunnableConfig | None,
        ledger: Ledger | None,
        memory: MemoryLedger | None,
    ) -> None:
        self._graph = graph
        whole = _compat.whole_config(graph, config)
        self._place = place_of(graph, whole, ledger, memory)
        saver = _compat.saver_of(graph, whole)
        # A graph inside another one is not the owner of the thread: its state ends with the node that it is.
        self._is_nested = _compat.is_nested(whole)
        self._is_resuming = _compat.is_resuming(whole)
        self._owns = self._place is not None and saver is not None and not self._is_nested
        self._saver = saver
        self._config = _compat.thread_config(whole)
        name, namespace = _compat.thread_of(whole)
        # What is on no thread shares nothing with anything.
        self.key = f"{name}/{namespace}" if name is not None else str(uuid4())

    @property
    def is_kept(self) -> bool:
        """Whether a record is kept at all."""
        return self._place is not None

    def load(self) -> Procedure[Record | None]:
        """The record that was saved last."""
        document = (yield self._place.read()) if self._place is not None else None
        return read_record(document)

    def save(self, record: Record) -> Procedure[None]:
        """Keep a record."""
        if self._place is not None:
            yield self._place.write(write_record(record))

    def carried_on(self, record: Record | None, graph_input: object, limits: PlanLimits) -> Procedure[Record | None]:
        """The run that this input goes on with; `None` where it starts a new one. One that was cut is taken back.

        Raises:
            ResumeError: that run was cut, and the limit that ended it is no higher now; or it is answered, and asked
                nothing.
        """
        if record is None:
            return None
        if self._is_nested:
            return record if self._is_resuming else None
        if graph_input is not None and not isinstance(graph_input, Command):
            return None
        if record.status == "cut":
            if isinstance(graph_input, Command):
                if graph_input.resume is None:
                    return None
                text = "the run on this thread was cut and waits for no answer: go on with it by an input of None"
                raise ResumeError(text, limit=record.hit.limit if record.hit is not None else None)
            _check_higher(record, limits)
            if record.stopped_at is not None:
                yield from self.rewind(record.stopped_at)
            # Whoever goes on has looked at what ended it: a loop is counted anew.
            fresh = LoopState()
            return replace(record, status="open", hit=None, stopped_at=None, loops=fresh, node_loops=fresh)
        if record.status == "completed" and not (yield from self._waits()):
            return None
        return record

    def whole_state(self) -> Procedure[Mapping[str, object]]:
        """The stored state, also what the graph does not give its callers; empty where there is none."""
        if not self._owns:
            return {}
        state: Any = yield Call(self._graph.get_state, self._graph.aget_state, self._config)
        return state.values if _compat.is_update(state.values) else {}

    def mend(self, update: Mapping[str, object]) -> Procedure[str | None]:
        """Store the end of a run that is cut, with nothing left to run; the id of the checkpoint it had reached."""
        if not self._owns or self._saver is None:
            return None
        stopped = yield Call(self._saver.get_tuple, self._saver.aget_tuple, self._config)
        node = _compat.plain_writer(self._graph, update)
        if stopped is None or node is None:
            return None
        clear = [StateUpdate(None, END)]
        # What has finished beside the cut is kept by the first, and nothing that the update would start by the last.
        steps = [clear, [StateUpdate(dict(update), node)], clear] if update else [clear]
        yield Call(self._graph.bulk_update_state, self._graph.abulk_update_state, self._config, steps)
        return str(_compat.checkpoint_id(stopped.config))

    def rewind(self, checkpoint_id: str) -> Procedure[None]:
        """Make the checkpoint that a cut run had reached the newest one again, with all that was done beyond it."""
        reached = _compat.at_checkpoint(self._config, checkpoint_id)
        newest = yield Call(self._graph.update_state, self._graph.aupdate_state, reached, None, "__copy__")
        yield from self._copy_progress(reached, newest)

    def _copy_progress(self, source: RunnableConfig, target: RunnableConfig) -> Procedure[None]:
        """Give the tasks of a copy of a checkpoint what those of the original had done: they have other ids."""
        assert self._saver is not None
        saved = yield Call(self._saver.get_tuple, self._saver.aget_tuple, source)
        old: Any = yield Call(self._graph.get_state, self._graph.aget_state, source)
        new: Any = yield Call(self._graph.get_state, self._graph.aget_state, target)
        for before, after in zip(old.tasks, new.tasks, strict=False):
            if writes := _compat.writes_of(saved.pending_writes or (), before.id):
                yield Call(self._saver.put_writes, self._saver.aput_writes, new.config, writes, after.id)
            if before.state is not None and after.state is not None:
                yield from self._copy_below(before.state, after.state)

    def _copy_below(self, source: RunnableConfig, target: RunnableConfig) -> Procedure[None]:
        """Copy the state of a graph that is a task of another one."""
        assert self._saver is not None
        saved = yield Call(self._saver.get_tuple, self._saver.aget_tuple, source)
        if saved is not None:
            versions = saved.checkpoint["channel_versions"]
            yield Call(self._saver.put, self._saver.aput, target, saved.checkpoint, saved.metadata, versions)
            yield from self._copy_progress(source, target)

    def _waits(self) -> Procedure[bool]:
        """Whether the stored state has something left to run: a breakpoint ends a run without a word."""
        if not self._owns:
            return False
        state: Any = yield Call(self._graph.get_state, self._graph.aget_state, self._config)
        return bool(state.next)


def _check_higher(record: Record, limits: PlanLimits) -> None:
    hit = record.hit
    if hit is None or hit.limit in _RESET_BY_LANGGRAPH:
        return
    allowed = allowed_by_limit(limits).get(hit.limit)
    if allowed is not None and allowed <= hit.allowed:
        text = f"{limit_reason(hit)}: bind the graph to limits that allow more than {hit.allowed} to go on"
        raise ResumeError(text, limit=hit.limit)
