"""Loop detection in a graph: its tool calls and what its nodes give, as the kernel's detector takes them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, cast

from langchain_core.messages import AIMessage, BaseMessage, ToolMessage

from endstop._loops import Action, LoopDetector, LoopFinding, LoopState, Outcome, ToolBatch
from endstop.langgraph._compat import is_update

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


_UNKNOWN_TOOL = "is not a valid tool"


class LoopWatch:
    """Watches the batches of one graph. `state` is what the detector remembers, `observed` the id of the newest batch.

    A batch is seen when the last of its calls ends, early enough to tell the model with that result. One whose calls
    did not all run is seen in the messages of the next model call.
    """

    def __init__(self, detector: LoopDetector, state: LoopState | None = None, observed: str | None = None) -> None:
        self._detector = detector
        self.state = state or LoopState()
        self.observed = observed
        self._turn: AIMessage | None = None
        self._results: dict[str, ToolMessage] = {}

    @property
    def most_repeats(self) -> int:
        """How often a unit may repeat before it is a loop."""
        return self._detector.policy.repeats

    def another(self) -> LoopWatch:
        """A watch with the same policy for another graph."""
        return LoopWatch(self._detector)

    def asked(self, turn: AIMessage) -> None:
        """A model asks for calls."""
        self._turn, self._results = turn, {}

    def ended(self, result: ToolMessage, traits: Mapping[str, Mapping[str, object]]) -> LoopFinding | None:
        """A call has ended; a finding where it completes a batch that makes one."""
        self._results[result.tool_call_id] = result
        turn = self._turn
        if turn is None or any(call["id"] not in self._results for call in turn.tool_calls):
            return None
        return self._observe(turn, self._results.values(), traits)

    def sent(self, messages: Sequence[BaseMessage], traits: Mapping[str, Mapping[str, object]]) -> LoopFinding | None:
        """These messages are sent to a model: a finding where they end with a batch that makes one and was not seen."""
        results: list[ToolMessage] = []
        for message in reversed(messages):
            if isinstance(message, ToolMessage):
                results.append(message)
            elif isinstance(message, AIMessage) and results and message.id != self.observed:
                return self._observe(message, results, traits)
            else:
                break
        return None

    def _observe(
        self, turn: AIMessage, results: Iterable[ToolMessage], traits: Mapping[str, Mapping[str, object]]
    ) -> LoopFinding | None:
        self._turn, self.observed = None, turn.id
        by_id = {result.tool_call_id: result for result in results}
        outcomes = tuple(
            _outcome(call["name"] or "", call["args"] or {}, by_id[call["id"] or ""], traits)
            for call in (*turn.tool_calls, *turn.invalid_tool_calls)
            if (call["id"] or "") in by_id
        )
        self.state, finding = self._detector.observe(self.state, ToolBatch(outcomes=outcomes))
        return finding


class NodeWatch:
    """Watches what the nodes of a graph give, for graphs whose work is done in nodes and not by tools.

    A super-step whose nodes give what they gave before has made no progress. Messages that the graph had before are
    left out: a node that is an agent itself gives its whole history each time.
    """

    def __init__(self, detector: LoopDetector, state: LoopState | None = None) -> None:
        self._detector = detector
        self.state = state or LoopState()
        self._seen: set[str | None] = set()

    def began(self, messages: Iterable[BaseMessage]) -> None:
        """The messages that were there at the beginning."""
        self._seen.update(message.id for message in messages)

    def gave(self, updates: Iterable[tuple[str, object]], *, polling: bool) -> LoopFinding | None:
        """What the nodes of one super-step gave.

        `polling` says that no model was called: then the graph may be waiting for something, and is given more time.
        """
        outcomes = tuple(
            Outcome(action=Action(name=node, polling=polling), result=self._said(update), failed=False)
            for node, update in updates
        )
        self.state, finding = self._detector.observe(self.state, ToolBatch(outcomes=outcomes))
        return finding

    def _said(self, value: object) -> str:
        """An update as text, without what is different each time: the ids of messages and of calls."""
        if isinstance(value, BaseMessage):
            if value.id is not None and value.id in self._seen:
                return ""
            self._seen.add(value.id)
            calls = [(call["name"], call["args"]) for call in value.tool_calls] if isinstance(value, AIMessage) else []
            return json.dumps([value.type, value.content, calls], default=str, sort_keys=True)
        if is_update(value):
            return " ".join(f"{key}={self._said(one)}" for key, one in value.items())
        if isinstance(value, list | tuple):
            said = map(self._said, cast("Sequence[object]", value))  # of anything
            return " ".join(filter(None, said))
        return repr(value)


def _outcome(
    name: str,
    arguments: Mapping[str, object] | str,
    result: ToolMessage,
    traits: Mapping[str, Mapping[str, object]],
) -> Outcome:
    failed = result.status == "error"
    text = result.content if isinstance(result.content, str) else str(result.text)
    of_tool = traits.get(name, {})
    action = Action(
        name=name,
        arguments=arguments,
        polling=of_tool.get("polling") is True,
        repeatable=of_tool.get("repeatable") is True,
        read_only=of_tool.get("read_only") is True,
        unknown=failed and _UNKNOWN_TOOL in text,
    )
    return Outcome(action=action, result=text, failed=failed)
