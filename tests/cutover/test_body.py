"""The kernel as the body of an agent: what it is asked for, what it counts and how it ends."""

from __future__ import annotations

from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.messages import HumanMessage
from langgraph.errors import GraphRecursionError

from endstop.cutover._body import AGAIN, OTHER, kernel_tools, run_turn
from endstop.cutover._graph_state import GraphState
from endstop.cutover._pregel import Chunk, merged_config, opened_run, runtime_for, surroundings
from endstop.cutover._turn import Turn

from .scripts import MIDDLEWARE, TOOLS, Call, ScriptedChat

HI: list[Any] = [("messages", [HumanMessage("hi", id="question")])]


def agent(*answers: Any, middleware: tuple[str, ...] = ()) -> Any:
    chat = ScriptedChat(answers=answers)
    return create_agent(chat, TOOLS, middleware=[MIDDLEWARE[name]() for name in middleware])


async def played(graph: Any, limit: int = 30) -> tuple[Turn, Any]:
    """The turn when it is over, and what it spent."""
    told: list[Chunk] = []
    config = merged_config(None, {"recursion_limit": limit})
    runtime = runtime_for(config, context=None, store=None, writer=told.append)
    config = surroundings(config, runtime=runtime, tell=told.append, subgraphs=False, modes=())
    channels = {key: channel.copy() for key, channel in graph.builder.channels.items()}
    turn = Turn(
        graph.builder,
        GraphState(channels, graph.builder.managed),
        config=config,
        manager=await opened_run(config, HI, "turn", is_async=True),
        tell=told.append,
        output_keys="messages",
        is_async=True,
    )
    await turn.begin(HI)
    return turn, await run_turn(turn, kernel_tools(graph), name="turn")


def test_the_tools_of_the_kernel_are_the_agents_and_two_of_its_own() -> None:
    """One for tools that the agent was not built with, one to ask the model again."""
    names = [tool.name for tool in kernel_tools(agent())]
    assert names == [*(tool.name for tool in TOOLS), OTHER, AGAIN]
    assert [tool.name for tool in kernel_tools(create_agent(ScriptedChat(answers=()), []))] == [OTHER, AGAIN]


async def test_rounds_and_calls_are_counted() -> None:
    """Each model call is a round of the kernel, each tool call a call, a call of an unknown tool too."""
    turn, spent = await played(agent((Call(tool="double"), Call(tool="unknown")), (Call(tool="halve"),), "done"))
    assert turn.failure is None
    assert (turn.rounds, turn.steps) == (3, 5)
    assert spent.model_rounds == 3
    assert spent.tools == {"double": 1, OTHER: 1, "halve": 1}


async def test_a_question_again_is_a_round() -> None:
    """A middleware that jumps back to the model asks once more."""
    turn, spent = await played(agent("one", "two", middleware=("ask_twice",)))
    assert turn.rounds == 2
    assert spent.model_rounds == 2
    assert spent.tools == {AGAIN: 1}


async def test_a_turn_that_is_out_of_steps_fails_with_langgraphs_error() -> None:
    """Nothing was spent that the kernel could tell; the failure is the turn's."""
    turn, spent = await played(agent(*[(Call(tool="double"),)] * 9), limit=4)
    assert spent is None
    assert isinstance(turn.failure, GraphRecursionError)
    assert turn.steps == 4


@pytest.mark.parametrize("answers", [((Call(tool="fail"),),), (ValueError("the model is out"),)])
async def test_what_a_node_raises_ends_the_turn(answers: tuple[Any, ...]) -> None:
    """The model is not told of it, and the error is kept as it is."""
    turn, spent = await played(agent(*answers))
    assert spent is None
    assert isinstance(turn.failure, KeyError | ValueError)
    assert turn.rounds == 1
