"""The assistant's models: a script by the node that asks, and any model of endstop."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal
from langchain_core.messages import HumanMessage, SystemMessage

from endstop import ModelError
from endstop.models.scripted import ScriptedModel, turn
from examples.research_assistant import build_graph
from examples.research_assistant.models import EndstopChat
from examples.research_assistant.nodes import REVIEWER, WRITER
from tests.research.scripts import QUESTION, script


@pytest.fixture(scope="module")
def portal() -> Iterator[BlockingPortal]:
    """An event loop in a thread of its own."""
    with start_blocking_portal() as opened:
        yield opened


def test_a_script_answers_each_node_from_its_own_list() -> None:
    """In order; the last answer comes again and again."""
    model = script("REWRITE", "PASS", drafts=["One.", "Two."])

    def asked(instructions: str) -> str:
        return model.invoke(f"Some material.\n\n{instructions}").text

    assert [asked(REVIEWER), asked(WRITER), asked(REVIEWER), asked(WRITER), asked(WRITER)] == [
        *("REWRITE", "One.", "PASS", "Two.", "Two.")
    ]


def test_a_model_of_endstop_is_a_chat_model(portal: BlockingPortal) -> None:
    """Prompt and usage are carried over."""
    answers = ScriptedModel([turn("Closed.", usage=(20, 5))])
    message = EndstopChat(answers=answers, portal=portal).invoke([SystemMessage("Be brief."), HumanMessage("Which?")])
    assert message.text == "Closed."
    assert message.usage_metadata == {"input_tokens": 20, "output_tokens": 5, "total_tokens": 25}
    assert [message.content for message in answers.requests[0].messages] == ["Be brief.\n\nWhich?"]


def test_what_fails_in_passing_is_asked_again(portal: BlockingPortal) -> None:
    """A connection that broke off does not lose the run."""
    answers = ScriptedModel([ModelError("broke off", retryable=True), "Closed."])
    assert EndstopChat(answers=answers, portal=portal).invoke("Which?").text == "Closed."


def test_what_fails_for_good_ends_the_run(portal: BlockingPortal) -> None:
    """With the model's own error."""
    answers = ScriptedModel([ModelError("no such model")])
    with pytest.raises(ModelError, match="no such model"):
        EndstopChat(answers=answers, portal=portal).invoke("Which?")


def test_the_assistant_runs_on_a_model_of_endstop(portal: BlockingPortal) -> None:
    """Its nodes ask from threads of their own, several at once."""
    answers = ScriptedModel(["One?", "A note.", "A summary.", "Evidence.", "A draft.", "PASS"])
    state = build_graph(model=EndstopChat(answers=answers, portal=portal)).invoke(QUESTION)
    assert state["report"].startswith("A draft.")
    assert answers.request_count == 6
