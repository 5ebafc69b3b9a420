"""The shape in which a caller gets the stream of a graph, and how a run that is cut tells so in it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from langchain_core.messages import AIMessage

from endstop.langgraph import _compat
from endstop.langgraph._finish import messages_of
from endstop.langgraph._history import MARK

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from langchain_core.runnables import RunnableConfig

    from endstop.langgraph._limits import GraphEnding

INTERRUPTS = "__interrupt__"
"""The key under which LangGraph gives what a paused graph waits for."""


class Wire:
    """Reads the chunks of a graph that streams `values` and `updates` beside what its caller asked for (`modes`)."""

    def __init__(self, graph: _compat.AnyPregel, config: RunnableConfig | None, options: Mapping[str, Any]) -> None:
        given = options.get("stream_mode")
        asked = given if given is not None else _compat.default_stream_mode(graph, config)
        self._asked = [asked] if isinstance(asked, str) else list(asked)
        self._bare = isinstance(asked, str)
        self._subgraphs = bool(options.get("subgraphs"))
        self._typed = options.get("version") == "v2"
        keys = options.get("output_keys")
        self._keys = keys if keys is not None else graph.stream_channels_asis
        self._root: tuple[str, ...] | None = None
        self.modes = list(dict.fromkeys([*self._asked, "values", "updates"]))

    def parts(self, chunk: Any) -> tuple[tuple[str, ...], str, Any]:
        """The namespace, the mode and the payload of a chunk."""
        if self._typed:
            return chunk["ns"], chunk["type"], chunk["data"]
        return chunk if self._subgraphs else ((), *chunk)

    def is_root(self, namespace: tuple[str, ...]) -> bool:
        """Whether it is the graph's own namespace: that of its first chunk."""
        if self._root is None:
            self._root = namespace
        return namespace == self._root

    def state(self, payload: Any) -> Mapping[str, object]:
        """The state in a payload of `values`."""
        if isinstance(self._keys, str):
            return {self._keys: payload}
        if _compat.is_update(payload):
            return payload if INTERRUPTS not in payload else {k: v for k, v in payload.items() if k != INTERRUPTS}
        return {key: getattr(payload, key) for key in self._keys if hasattr(payload, key)}

    def given(self, chunk: Any, mode: str, payload: Any) -> Sequence[Any]:
        """The chunk as the caller asked for it, if it did."""
        if mode not in self._asked:
            return ()
        if self._typed or not self._bare:
            return (chunk,)
        return ((chunk[0], payload),) if self._subgraphs else (payload,)

    def ending(self, state: Mapping[str, object], update: Mapping[str, object], ending: GraphEnding) -> Iterator[Any]:
        """The last chunks of a run that is cut, one of each mode that was asked for.

        `checkpoints` and `tools` have none: nothing of their shape tells of an ending.
        """
        newest = (messages_of(update) or [AIMessage(ending.text)])[-1]
        task: dict[str, object] = {
            "id": str(uuid4()),
            "name": MARK,
            "error": None,
            "result": dict(update),
            "interrupts": [],
            MARK: ending,
        }
        event = {"step": ending.spent.super_steps, "timestamp": datetime.now(UTC).isoformat(), "type": "task_result"}
        payloads: dict[str, object] = {
            "updates": {MARK: {**update, MARK: ending}},
            "messages": (newest, {"langgraph_node": MARK}),
            "custom": ending,
            "tasks": task,
            "debug": {**event, "payload": task},
            "values": self._values(state, ending),
        }
        for mode, payload in payloads.items():
            if mode in self._asked:
                yield self._shaped(mode, payload)

    def _values(self, state: Mapping[str, object], ending: GraphEnding) -> object:
        if isinstance(self._keys, str):
            return state.get(self._keys)
        return {**{key: state[key] for key in self._keys if key in state}, MARK: ending}

    def _shaped(self, mode: str, payload: Any) -> Any:
        namespace = self._root or ()
        if self._typed:
            part = {"type": mode, "ns": namespace, "data": payload}
            return {**part, "interrupts": ()} if mode == "values" else part
        if self._bare:
            return (namespace, payload) if self._subgraphs else payload
        return (namespace, mode, payload) if self._subgraphs else (mode, payload)


def updates_of(payload: Any) -> list[tuple[str, object]]:
    """The nodes in a payload of `updates`, each with its update."""
    return [(node, update) for node, update in payload.items() if not node.startswith("__")]
