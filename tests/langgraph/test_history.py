"""Lists of messages are repaired so that every provider takes them, and read in the kernel's terms."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage

from endstop._messages import FilePart, ModelTurn, TextPart, ToolCall, ToolReturn, Usage, UserMessage
from endstop._results import best_text, tool_digest
from endstop.langgraph._history import (
    answers,
    at_end,
    final_notice,
    kernel_messages,
    marked,
    not_run,
    nudge,
    repaired,
    unanswered,
)

if TYPE_CHECKING:
    from collections.abc import Sequence


def asks(*calls: tuple[str, str], text: str = "") -> AIMessage:
    return AIMessage(text, tool_calls=[{"id": call_id, "name": name, "args": {"q": name}} for call_id, name in calls])


def broken(call_id: str | None) -> AIMessage:
    call = {"id": call_id, "name": "look", "args": '{"q": ', "error": None, "type": "invalid_tool_call"}
    return AIMessage("", invalid_tool_calls=[call])


def says(call_id: str, text: str = "found") -> ToolMessage:
    return ToolMessage(text, tool_call_id=call_id, name="look")


# -- what is unanswered ----------------------------------------------------------------------------


def test_every_call_without_an_answer_is_found() -> None:
    """Oldest first, whatever was said since."""
    messages = [asks(("1", "look"), ("2", "listen")), says("2"), HumanMessage("Go on."), asks(("3", "look"))]
    assert [call.call_id for call in unanswered(messages)] == ["1", "3"]
    assert unanswered(messages)[0] == ToolCall(call_id="1", name="look", arguments={"q": "look"})


def test_a_call_with_broken_arguments_wants_an_answer_too() -> None:
    """Providers are sent such calls as well, and refuse a history in which nothing answers them."""
    (call,) = unanswered([broken("1")])
    assert (call.call_id, call.arguments, call.invalid_arguments) == ("1", {}, '{"q": ')


@pytest.mark.parametrize("call_id", [None, ""])
def test_a_call_without_an_id_is_nobodys_to_answer(call_id: str | None) -> None:
    """No answer could name it."""
    assert unanswered([broken(call_id)]) == ()
    assert repaired([broken(call_id)], "why") == [broken(call_id)]


def test_an_id_that_comes_again_is_another_call() -> None:
    """Some models count their calls from one in every turn: an answer belongs to the newest turn before it."""
    again = [asks(("1", "look")), says("1"), asks(("1", "look"))]
    assert [call.call_id for call in unanswered(again)] == ["1"]
    assert repaired(again, "why")[-1].text == "Not run: why"
    left_open = [asks(("1", "look")), asks(("1", "look")), says("1")]
    assert [m.text for m in repaired(left_open, "why") if isinstance(m, ToolMessage)] == ["Not run: why", "found"]


# -- answers ---------------------------------------------------------------------------------------


def test_answers_are_for_the_newest_turn_in_the_order_asked() -> None:
    """What is known is told, what was not run says so and why."""
    messages = [asks(("1", "look")), asks(("2", "look"), ("3", "listen"), ("4", "look")), says("3")]
    known = says("4", "a key")
    first, second = answers(messages, "max_tool_calls is used up (5 of 5)", {"4": known})
    assert (first.tool_call_id, first.name, first.status) == ("2", "look", "error")
    assert first.text == "Not run: max_tool_calls is used up (5 of 5)"
    assert second is known


def test_there_is_nothing_to_answer_where_nothing_was_asked() -> None:
    """Neither in an empty list nor after an answer in words."""
    assert answers([], "why") == []
    assert answers([HumanMessage("Hi"), AIMessage("Hello")], "why") == []


# -- repair ----------------------------------------------------------------------------------------


def test_a_late_answer_is_moved_to_where_it_belongs() -> None:
    """Directly after the message that asks for it, before what was said since."""
    call, late, word = asks(("1", "look"), ("2", "look")), says("2"), HumanMessage("Well?")
    assert repaired([call, word, late], "why") == [call, late, not_run("1", "look", "why"), word]


def test_an_answer_to_nothing_and_a_second_one_are_left_out() -> None:
    """Providers refuse both."""
    call, first = asks(("1", "look")), says("1", "first")
    assert repaired([says("0"), call, first, says("1", "second"), says("2")], "why") == [call, first]


ids = st.sampled_from(["1", "2", "3", "4"])
turns = st.lists(st.tuples(ids, st.just("look")), max_size=4).map(lambda calls: asks(*calls))
histories = st.lists(
    st.one_of(
        turns,
        ids.map(broken),
        ids.map(says),
        st.just(HumanMessage("Go on.")),
        st.just(SystemMessage("Be brief.")),
        st.just(AIMessage("Hm.")),
    ),
    max_size=12,
)


def call_ids(message: BaseMessage) -> list[str]:
    if not isinstance(message, AIMessage):
        return []
    return [str(call["id"]) for call in (*message.tool_calls, *message.invalid_tool_calls)]


def blocks(messages: Sequence[BaseMessage]) -> list[tuple[set[str], list[str]]]:
    """For each message that is no answer: what it asks for, and what answers stand directly after it."""
    found: list[tuple[set[str], list[str]]] = []
    for message in messages:
        if isinstance(message, ToolMessage):
            found[-1][1].append(message.tool_call_id)
        else:
            found.append((set(call_ids(message)), []))
    return found


@given(histories)
def test_a_repaired_list_is_one_that_every_provider_takes(messages: list[BaseMessage]) -> None:
    """Every call is answered exactly once, directly after the message that asks for it, and nothing else is."""
    for asked, answered in blocks(repaired(messages, "why")):
        assert Counter(answered) == Counter(asked)
    assert unanswered(repaired(messages, "why")) == ()


@given(histories)
def test_repair_changes_nothing_but_the_answers(messages: list[BaseMessage]) -> None:
    """What was said stays, in its order; no answer that counts is lost; what is added says that it was not run."""

    def said(of: list[BaseMessage]) -> list[BaseMessage]:
        return [message for message in of if not isinstance(message, ToolMessage)]

    valid = repaired(messages, "why")
    assert said(valid) == said(messages)
    added = [m for m in valid if isinstance(m, ToolMessage) and not any(m is old for old in messages)]
    assert all(message.text == "Not run: why" for message in added)
    assert len(added) == len(unanswered(messages))


@given(histories)
def test_repair_is_done_once(messages: list[BaseMessage]) -> None:
    """A valid list comes back equal."""
    valid = repaired(messages, "why")
    assert repaired(valid, "another reason") == valid


@given(histories)
def test_answers_at_the_end_are_what_repair_adds_to_the_newest_turn(messages: list[BaseMessage]) -> None:
    """Who appends the answers and who repairs the list says the same."""
    newest = max((i for i, m in enumerate(messages) if isinstance(m, AIMessage)), default=0)
    valid = repaired(messages[:newest], "why") + messages[newest:]
    whole = [m for m in repaired(valid, "why") if isinstance(m, ToolMessage)]
    assert [m for m in answers(valid, "why") if m not in whole] == []


# -- marks and notices -----------------------------------------------------------------------------


def test_a_marked_message_is_another_one() -> None:
    """The ending stands beside what the provider said; the message that was given stays as it is."""
    message = AIMessage("Under the mat.", response_metadata={"model_name": "m"})
    assert marked(message, {"limit": "max_model_calls"}).response_metadata == {
        "model_name": "m",
        "endstop": {"limit": "max_model_calls"},
    }
    assert message.response_metadata == {"model_name": "m"}


def test_notices_speak_as_the_user() -> None:
    """Models obey the newest word of the user; a system message in the middle is refused by some providers."""
    assert isinstance(final_notice(), HumanMessage)
    assert nudge("look was called 3 times").text.startswith("You are repeating yourself: look was called 3 times.")


# -- in the kernel's terms -------------------------------------------------------------------------


def test_messages_are_read_in_the_kernels_terms() -> None:
    """Who said it, what, which calls and their returns, and what it cost."""
    usage = {"input_tokens": 7, "output_tokens": 3, "total_tokens": 10}
    asking = asks(("1", "look"), text="Hm.").model_copy(update={"usage_metadata": usage})
    failed = ToolMessage("no such place", tool_call_id="1", name="look", status="error")
    messages = [SystemMessage("Be brief."), asking, says("1"), failed, not_run("1", "look", "why")]
    assert kernel_messages(messages) == [
        UserMessage(content="Be brief."),
        ModelTurn(
            text="Hm.",
            tool_calls=(ToolCall(call_id="1", name="look", arguments={"q": "look"}),),
            usage=Usage(input_tokens=7, output_tokens=3),
        ),
        ToolReturn(call_id="1", name="look", content="found"),
        ToolReturn(call_id="1", name="look", content="no such place", status="error"),
        ToolReturn(call_id="1", name="look", content="Not run: why", status="not_run"),
    ]


def test_of_what_is_no_text_the_kind_is_kept() -> None:
    """It counts as an attachment where the size of a request is estimated."""
    parts = HumanMessage(["Look:", {"type": "text", "text": "this"}, {"type": "image", "url": "https://x.test/i.png"}])
    (message,) = kernel_messages([parts])
    assert message == UserMessage(
        content=(TextPart(text="Look:"), TextPart(text="this"), FilePart(name="image", url=""))
    )


@pytest.mark.parametrize("notices", [[], [nudge("the call never\n changes")], [nudge("again"), nudge("and [again]")]])
def test_a_notice_at_the_end_of_a_result_is_the_models_alone(notices: list[HumanMessage]) -> None:
    """It is no part of what was found, as text or as a block."""
    added = "".join(map(at_end, notices))
    as_text = ToolMessage(f"a [key]{added}", tool_call_id="1", name="look")
    as_blocks = ToolMessage(["a [key]", {"type": "text", "text": added}], tool_call_id="1", name="look")
    for result in (as_text, as_blocks):
        assert tool_digest(kernel_messages([result])) == "- look(): a [key]"


def test_the_kernels_digest_reads_them() -> None:
    """Calls that were not run are no result."""
    messages = [asks(("1", "look"), ("2", "listen")), says("1", "a key"), not_run("2", "listen", "why")]
    assert best_text(kernel_messages(messages)) == ("tool_digest", '- look({"q": "look"}): a key')
    assert tool_digest(kernel_messages(repaired([asks(("1", "look"))], "why"))) == ""
