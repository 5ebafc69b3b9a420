"""A tape is replayed on the kernel body of the agent that it was made with: nothing real acts, and a change shows."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
from langchain.agents import create_agent as original
from langchain.agents.middleware import SummarizationMiddleware, before_model
from langgraph.checkpoint.memory import InMemorySaver

from endstop import ConfigError
from endstop.cutover import create_agent, create_react_agent, record, replay_agent
from tests.cutover.agents_for_tests import asked, on_thread
from tests.cutover.clerks import Counted


def recorded(agent: Any, tape: Path, turns: int = 2) -> Path:
    """The tape with turns of one thread."""
    with record(tape):
        for number in range(turns):
            agent.invoke(asked(number=number), on_thread())
    return tape


def shortening_with(model: Any) -> SummarizationMiddleware:
    """A middleware that has the model shorten the history in each turn but the first, in the words of this version."""
    if "trigger" in inspect.signature(SummarizationMiddleware).parameters:
        return SummarizationMiddleware(model, trigger=("messages", 3), keep=("messages", 1))
    older: Any = SummarizationMiddleware
    return older(model, max_tokens_before_summary=20, messages_to_keep=1)


@pytest.mark.parametrize("make", [create_agent, create_react_agent])
def test_an_agent_replays_its_own_turns_without_a_difference_and_nothing_acts(make: Any, tmp_path: Path) -> None:
    real = Counted()
    agent = make(real.model, [real.shop.look], checkpointer=InMemorySaver())
    tape = recorded(agent, tmp_path / "turns.jsonl")
    acts = real.acts
    report = replay_agent(tape, agent)
    assert [turn.verdict for turn in report.turns] == ["same", "same"], report.to_text()
    assert report.exit_code == 0
    assert real.acts == acts


def test_models_of_middleware_give_recorded_answers_too(tmp_path: Path) -> None:
    real, other = Counted(), Counted()
    shortening = shortening_with(other.model)
    agent = create_agent(real.model, [real.shop.look], middleware=[shortening], checkpointer=InMemorySaver())
    tape = recorded(agent, tmp_path / "turns.jsonl")
    acts = real.acts, other.acts
    assert other.acts
    report = replay_agent(tape, agent)
    assert [turn.verdict for turn in report.turns] == ["same", "same"], report.to_text()
    assert (real.acts, other.acts) == acts


def test_a_model_that_is_not_known_as_the_agents_is_never_asked(tmp_path: Path) -> None:
    real, hidden = Counted(), Counted()

    def look(place: str) -> str:
        """Look in a place."""
        return "nothing"

    agent = create_agent(real.model, [look])
    tape = recorded(agent, tmp_path / "turns.jsonl", turns=1)

    @before_model
    def asks_another(state: Any, runtime: Any) -> None:
        hidden.model.invoke("what now?")

    changed = create_agent(real.model, [look], middleware=[asks_another])
    [turn] = replay_agent(tape, changed).turns
    assert turn.verdict == "different"
    assert hidden.acts == 0


def test_an_agent_that_changed_since_differs_by_name(tmp_path: Path) -> None:
    real = Counted()
    tape = recorded(create_agent(real.model, [real.shop.look]), tmp_path / "turns.jsonl", turns=1)
    changed = create_agent(real.model, [real.shop.look], system_prompt="Be brief.")
    [turn] = replay_agent(tape, changed).turns
    assert {difference.code for difference in turn.differences} == {"model_messages"}


def test_an_agent_that_the_kernel_refuses_is_counted_apart(tmp_path: Path) -> None:
    real = Counted()
    tape = recorded(create_agent(real.model, [real.shop.look]), tmp_path / "turns.jsonl", turns=1)
    refused = create_agent(real.model, [real.shop.look], interrupt_before=["tools"])
    report = replay_agent(tape, refused)
    assert [turn.refused_by for turn in report.turns] == [("interrupt_before",)]
    assert report.exit_code == 0
    assert replay_agent(tape, refused, strict=True).exit_code == 1


def test_an_agent_made_elsewhere_is_refused_with_the_remedy(tmp_path: Path) -> None:
    real = Counted()
    with pytest.raises(ConfigError, match=r"endstop\.cutover\.create_agent"):
        replay_agent(tmp_path / "none.jsonl", original(real.model, []))
