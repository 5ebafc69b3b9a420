"""The embedded model, for real, through the OpenAI adapter: what holds whatever it answers.

CI fetches the weights; elsewhere these are skipped where the cache does not have them.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

import anyio
import pytest

from endstop import Agent, AgentResult, PlanLimits
from endstop._events import Done, RoundStarted, TextDelta, ToolResultEvent, UsageEvent
from endstop._messages import ModelTurn, ToolReturn, UserMessage
from endstop.cli import Exit
from endstop.demo.server import ServerInfo, embedded_server
from endstop.demo.weights import cached_weights
from endstop.models.base import Delta, ModelRequest
from endstop.models.openai import OpenAIModel
from endstop.models.schema_tools import SchemaTools
from tests.demo.processes import PATIENCE_SECONDS, becomes_true, demo_process, has_processes, read_until, send

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from endstop._events import Event

pytest.importorskip("xllamacpp", reason="the server of the embedded model is not installed")

FETCH = "from endstop.demo.weights import ensure_weights; ensure_weights('0.5b')"

FIRST = PlanLimits(max_model_rounds=2, max_seconds=300)


@pytest.fixture(scope="module")
def weights() -> Path:
    """The smaller model's weights, else the larger's."""
    if os.environ.get("CI") and cached_weights("0.5b") is None:
        # A process of its own may use the network, which this one is refused.
        fetched = subprocess.run([sys.executable, "-c", FETCH], capture_output=True, text=True, check=False)
        if fetched.returncode != 0:
            pytest.skip(f"weights of the embedded model cannot be had: {fetched.stderr.strip()[-500:]}")
    path = cached_weights("0.5b") or cached_weights("1.5b")
    if path is None:
        pytest.skip("weights of the embedded model are not in the cache; run make demo first")
    return path


@pytest.fixture(scope="module")
async def server(weights: Path, anyio_backend: str) -> AsyncIterator[ServerInfo]:
    """One server for all of these; it serves one request at a time."""
    async with embedded_server(weights, context_tokens=4096) as info:
        yield info


@dataclass(frozen=True)
class Leg:
    """One leg of a run, with the agent that made it."""

    agent: Agent[str]
    events: list[Event]
    result: AgentResult[str]


def depth(well: str) -> str:
    """Measures how deep a well is."""
    return f"The {well} well is 12 metres deep."


@pytest.fixture(scope="module")
async def leg(server: ServerInfo) -> AsyncIterator[Leg]:
    """A run of at most two rounds, of which the last is the final answer."""
    fields = {"max_tokens": 60}
    async with OpenAIModel(server.model_name, base_url=server.base_url, temperature=0, extra_body=fields) as served:
        agent = Agent(SchemaTools(served), tools=[depth], instructions="Measure, then answer in one sentence.")
        async with agent.stream("How deep is the old well?", limits=FIRST) as run:
            events = [event async for event in run]
        yield Leg(agent, events, run.result)


async def test_every_round_is_a_request_that_is_counted_and_measured(leg: Leg) -> None:
    """The server reports its tokens, also in a stream, and nothing is estimated."""
    spent = leg.result.spent
    assert spent.model_rounds == spent.model_calls == sum(isinstance(event, RoundStarted) for event in leg.events)
    assert 1 <= spent.model_calls <= 2
    assert spent.unmeasured == 0
    assert spent.input_tokens > 0
    assert 0 < spent.output_tokens <= 60 * spent.model_calls
    turns = [message for message in leg.result.messages if isinstance(message, ModelTurn)]
    assert sum(turn.usage.output_tokens for turn in turns if turn.usage) == spent.output_tokens
    assert 0 < spent.seconds < 300


async def test_the_tool_calls_are_those_that_ran(leg: Leg) -> None:
    """The model may call or not; every call has its return, in events, history and account alike."""
    calls = [call for each in leg.result.messages if isinstance(each, ModelTurn) for call in each.tool_calls]
    returns = [each for each in leg.result.messages if isinstance(each, ToolReturn)]
    assert [call.call_id for call in calls] == [each.call_id for each in returns]
    assert all(set(call.arguments) == {"well"} for call in calls if call.invalid_arguments is None)
    assert leg.result.spent.tool_calls == sum(each.status == "ok" for each in returns)
    assert sum(isinstance(event, ToolResultEvent) for event in leg.events) == len(returns)


async def test_the_run_ends_as_its_result_says(leg: Leg) -> None:
    """Completed, or at a limit and marked."""
    result = leg.result
    assert isinstance(leg.events[-1], Done)
    assert result.stop_reason in ("completed", "tool_limit", "budget")
    assert result.truncated == (result.stop_reason != "completed") == (result.ending is not None)
    assert str(result).startswith("[TRUNCATED: ") == result.truncated


async def test_the_answer_comes_in_pieces(leg: Leg) -> None:
    """Joined they are the text of the last round, without the JSON that the model wrote around it."""
    last = max(place for place, event in enumerate(leg.events) if isinstance(event, RoundStarted))
    pieces = [event.text for event in leg.events[last:] if isinstance(event, TextDelta)]
    assert "".join(pieces) == [each.text for each in leg.result.messages if isinstance(each, ModelTurn)][-1]
    assert sum(isinstance(event, UsageEvent) for event in leg.events) == leg.result.spent.model_calls


async def test_a_result_survives_json_and_goes_on(leg: Leg) -> None:
    """From its JSON a run is continued inside a higher limit; what was spent stays spent."""
    result = await leg.agent.run("How deep is the new well?", limits=PlanLimits(max_model_rounds=1))
    stored = AgentResult.from_json(result.to_json())
    assert stored == result
    assert (stored.stop_reason, stored.spent.model_calls) == ("tool_limit", 1)
    further = await leg.agent.resume(stored, limits=FIRST)
    assert further.spent.model_calls == 2
    assert further.spent.tokens > stored.spent.tokens
    assert further.run_id == stored.run_id


async def test_a_cancelled_request_frees_the_server(server: ServerInfo) -> None:
    """An answer that would take many minutes is left at its first piece; the next request is answered at once."""
    endless = {"ignore_eos": True, "max_tokens": 3500}
    question = ModelRequest(messages=[UserMessage(content="Count from 1 upwards, without end.")])
    async with OpenAIModel(server.model_name, base_url=server.base_url, temperature=0, extra_body=endless) as model:
        with anyio.CancelScope() as scope:

            async def leave(delta: Delta) -> None:
                scope.cancel()

            await model.respond(question, leave)
    assert scope.cancelled_caught

    async def ignore(delta: Delta) -> None: ...

    short = {"max_tokens": 2}
    async with OpenAIModel(server.model_name, base_url=server.base_url, temperature=0, extra_body=short) as model:
        with anyio.fail_after(60):
            turn = await model.respond(ModelRequest(messages=[UserMessage(content="Hi")]), ignore)
    assert turn.usage is not None
    assert turn.usage.output_tokens <= 2
    assert turn.finish_reason == "length"


def test_ctrl_c_ends_the_demo_and_its_server(weights: Path) -> None:
    """As a terminal does it, to both: the run ends in order, and no process is left."""
    with demo_process(*(["--small"] if "0.5b" in weights.name else [])) as process:
        out = read_until(process, "round 1 of 3")
        send(process, signal.SIGINT)
        rest, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == Exit.INTERRUPTED
    assert out.startswith("Model: Qwen2.5-Coder-")
    assert "[CANCELLED: the run was cancelled; there is no answer]" in rest
    assert err == "ending the run in order; Ctrl-C again ends it at once\n"
    assert becomes_true(lambda: not has_processes(process))
