"""A run is followed to its end: shown, interruptible, and kept."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from endstop import (
    Agent,
    AgentResult,
    Event,
    LimitExceeded,
    ModelError,
    PlanLimits,
    RunState,
    tool,
)
from endstop.models.scripted import ScriptedModel, call, turn
from endstop.views.follow import follow
from tests.views.screens import (
    researcher,
    search,
)


class Recorder:
    """A view that keeps what it is shown, or breaks at the first event."""

    def __init__(self, breaks: bool = False) -> None:
        self.kinds: list[str] = []
        self.kept: AgentResult[object] | RunState | None = None
        self.breaks = breaks

    def show(self, event: Event) -> None:
        """Keeps the event's kind."""
        self.kinds.append(event.kind)
        if self.breaks:
            raise BrokenPipeError

    def end(self, kept: AgentResult[object] | RunState | None) -> None:
        """Keeps what is known at the end."""
        self.kept = kept


async def followed(agent: Agent[Any], view: Recorder, save: Path | None = None) -> AgentResult[object]:
    """A run followed to its end, where a second Ctrl-C would not be asked for."""
    return await follow(
        lambda: agent.stream("go"), view, save=save, on_interrupt=lambda: view.kinds.append("interrupt")
    )


async def test_a_run_is_shown_and_saved(tmp_path: Path) -> None:
    """The file has the result, whole, and nothing beside it is left over."""
    view = Recorder()
    result = await followed(Agent(ScriptedModel(["hi"])), view, tmp_path / "run.json")
    assert view.kept is result
    assert view.kinds[-1] == "done"
    assert AgentResult.from_json((tmp_path / "run.json").read_bytes()) == result
    assert os.listdir(tmp_path) == ["run.json"]


async def test_a_failure_leaves_its_state(tmp_path: Path) -> None:
    """What was done before is in the file, for a run to go on from."""
    view = Recorder()
    agent = Agent(ScriptedModel([turn(calls=[call("search", {"query": "a"})]), ModelError("no")]), tools=[search])
    with pytest.raises(ModelError) as caught:
        await followed(agent, view, tmp_path / "run.json")
    assert view.kept is caught.value.state
    assert RunState.from_json((tmp_path / "run.json").read_bytes()) == caught.value.state


async def test_a_limit_that_raises_leaves_its_result(tmp_path: Path) -> None:
    """The partial result is shown and saved, whatever the caller makes of the error."""
    view = Recorder()
    agent = replace(researcher(), limits=PlanLimits(max_model_rounds=1, on_limit="raise"))
    with pytest.raises(LimitExceeded) as caught:
        await followed(agent, view, tmp_path / "run.json")
    assert view.kept is caught.value.result
    assert AgentResult.from_json((tmp_path / "run.json").read_bytes()).stop_reason == "tool_limit"


async def test_an_error_of_somebody_else_leaves_the_state(tmp_path: Path) -> None:
    """What a run had done and spent is saved, whatever it failed of: it can be gone on with."""
    view = Recorder()
    with pytest.raises(ValueError, match="wrong"):
        await followed(Agent(ScriptedModel([ValueError("wrong")])), view, tmp_path / "run.json")
    assert isinstance(view.kept, RunState)
    assert RunState.from_json((tmp_path / "run.json").read_bytes()).spent.model_calls == 1


async def test_a_view_that_breaks_ends_the_run_and_loses_nothing(tmp_path: Path) -> None:
    """Where the reader of a pipe goes away the run is cancelled, and saved."""
    view = Recorder(breaks=True)
    with pytest.raises(BrokenPipeError):
        await followed(Agent(ScriptedModel(["hi"], latency_seconds=600)), view, tmp_path / "run.json")
    assert isinstance(view.kept, AgentResult)
    assert view.kept.stop_reason == "cancelled"
    assert AgentResult.from_json((tmp_path / "run.json").read_bytes()).stop_reason == "cancelled"


@tool
async def interrupt() -> str:
    """Press Ctrl-C."""
    signal.raise_signal(signal.SIGINT)
    await anyio.sleep(60)
    return "not reached"


@pytest.fixture
async def at_ctrl_c() -> AsyncIterator[Callable[[Any], None]]:
    """Sets what Ctrl-C does, and sets it back."""
    before = signal.getsignal(signal.SIGINT)
    yield lambda handler: signal.signal(signal.SIGINT, handler) and None
    signal.signal(signal.SIGINT, before)


async def test_ctrl_c_ends_a_run_in_order(at_ctrl_c: Callable[[Any], None]) -> None:
    """The run is cancelled, has a result, and Ctrl-C does what it did before."""
    at_ctrl_c(signal.default_int_handler)
    view = Recorder()
    agent = Agent(ScriptedModel([turn("On it.", calls=[call("interrupt")])]), tools=[interrupt])
    result = await followed(agent, view)
    assert result.stop_reason == "cancelled"
    assert result.text == "On it."
    assert view.kinds.count("interrupt") == 1
    assert view.kinds[-1] == "cancelled"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


async def test_ctrl_c_that_is_ignored_stays_ignored(at_ctrl_c: Callable[[Any], None]) -> None:
    """A program that a shell started in the background is not ended by the Ctrl-C for another."""
    at_ctrl_c(signal.SIG_IGN)
    view = Recorder()

    @tool
    async def press() -> str:
        signal.raise_signal(signal.SIGINT)
        return "pressed"

    result = await followed(Agent(ScriptedModel([turn(calls=[call("press")]), "done"]), tools=[press]), view)
    assert result.stop_reason == "completed"
    assert "interrupt" not in view.kinds
