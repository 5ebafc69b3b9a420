"""Runs recorded turns again with the recorded answers and results: no model is billed and no tool acts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeAlias

from endstop.cutover._compare import compare
from endstop.cutover._players import RecordedModel, recorded_tools
from endstop.cutover._recorder import Recorder
from endstop.cutover._replay_view import ReplayedTurn, ReplayReport
from endstop.cutover.tape import messages_of, turns, turns_of

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Sequence

    from langchain_core.language_models import BaseChatModel
    from langchain_core.tools import BaseTool

    from endstop._messages import JsonObject
    from endstop.cutover.tape import RecordedTurn

__all__ = ["Agent", "Build", "ReplayReport", "ReplayedTurn", "replay", "replay_turn"]


class Agent(Protocol):
    """What is replayed on: a compiled graph, or what has its interface."""

    @property
    def invoke(self) -> Callable[..., object]:
        """Runs one turn: it is called with the input and a config."""
        ...


Build: TypeAlias = "Callable[[BaseChatModel, Sequence[BaseTool]], Agent]"
"""Makes the agent of a model and tools, as `create_agent(model, tools, ...)` does with the arguments of the adopter."""


def replay(
    path: str | os.PathLike[str],
    build: Build,
    tools: Sequence[BaseTool],
    *,
    surface: str | None = None,
    strict: bool = False,
) -> ReplayReport:
    """Replay the turns of a tape that called a model, and compare; `surface` names the agent whose turns they are.

    `tools` are the agent's own: stand-ins take their place. Raises `TapeError` where the file is no tape.
    """
    asked = (turn for turn in turns(path) if turn.requests and surface in (None, turn.surface))
    return ReplayReport(turns=tuple(replay_turn(turn, build, tools) for turn in asked), strict=strict)


def replay_turn(turn: RecordedTurn, build: Build, tools: Sequence[BaseTool]) -> ReplayedTurn:
    """Replay one turn. One that is not all on its tape, or that goes on from an interrupt, is an error of the turn."""
    if problem := _unplayable(turn):
        return ReplayedTurn(run_id=turn.run_id, error=problem)
    events: list[JsonObject] = []
    agent = build(RecordedModel(turn), recorded_tools(turn, tools))
    limit = {} if turn.recursion_limit is None else {"recursion_limit": turn.recursion_limit}
    config = {"callbacks": [Recorder(events.append)], **limit}
    raised = _run(agent, {"messages": messages_of(turn.start)}, config)
    again = next((again for again in turns_of(events) if again.parent is None), None)
    if again is None:
        return ReplayedTurn(run_id=turn.run_id, error=f"the agent ran no turn: {raised}")
    return ReplayedTurn(run_id=turn.run_id, differences=compare(turn, again))


def _run(agent: Agent, given: object, config: object) -> str | None:
    """How the turn ended is on its tape; what was raised is told where no turn began."""
    try:
        agent.invoke(given, config)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def _unplayable(turn: RecordedTurn) -> str | None:
    if turn.incomplete:
        return f"the tape does not hold all of it: {'; '.join(turn.problems) or 'it has no end'}"
    if not isinstance(turn.input, dict) or "messages" not in turn.input:
        return "it goes on from an interrupt or a checkpoint, and began with no messages"
    return None
