"""How many tokens a request will be: never nothing for something, and what the provider measured where it did."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from endstop._estimate import (
    ATTACHMENT_TOKENS,
    MESSAGE_TOKENS,
    ContextSize,
    frame_tokens,
    message_tokens,
    text_tokens,
    turn_tokens,
)
from endstop._messages import (
    FilePart,
    ImagePart,
    Message,
    ModelTurn,
    TextPart,
    ToolCall,
    ToolReturn,
    ToolSpec,
    Usage,
    UserMessage,
)
from tests.strategies import histories, texts

ANY_TEXT = st.text(st.characters())


@given(ANY_TEXT)
def test_only_no_text_is_no_tokens(text: str) -> None:
    """Lone surrogates included: an estimate never raises."""
    assert (text_tokens(text) == 0) == (text == "")


@given(texts, texts)
def test_more_text_is_never_fewer_tokens(first: str, second: str) -> None:
    """An estimate grows with what is added, and parts are never estimated below the whole."""
    assert text_tokens(first) <= text_tokens(first + second) <= text_tokens(first) + text_tokens(second)


@pytest.mark.parametrize(
    ("text", "least", "most"),
    [
        ("The switch stops the axis before it runs off its rail. " * 20, 220, 340),
        ("for i in range(10):\n    print(i)\n" * 20, 160, 260),
        ("限位开关在轴脱离轨道之前将其停止。" * 20, 240, 400),
    ],
)
def test_common_text_is_estimated_about_right(text: str, least: int, most: int) -> None:
    """Counts of common tokenizers for English, code and Chinese lie between these."""
    assert least <= text_tokens(text) <= most


def test_every_kind_of_message_costs_its_frame_and_its_content() -> None:
    """Attachments are taken for what providers charge at most for one of ordinary size."""
    assert message_tokens(UserMessage(content="")) == MESSAGE_TOKENS
    assert message_tokens(UserMessage(content="abcdefg")) == MESSAGE_TOKENS + 3
    assert message_tokens(ToolReturn(call_id="1", name="t", content="abcdefg")) == MESSAGE_TOKENS + 3
    assert message_tokens(ModelTurn(text="abcdefg", thinking="abcdefg")) == MESSAGE_TOKENS + 6
    parts = (TextPart(text="abcdefg"), ImagePart(data=b"x" * 10_000), FilePart(name="a", url="https://example.com/a"))
    assert message_tokens(UserMessage(content=parts)) == MESSAGE_TOKENS + 3 + 2 * ATTACHMENT_TOKENS


def test_the_calls_of_a_turn_are_output_as_well() -> None:
    """Name and arguments are written by the model and billed."""
    long = ToolCall(call_id="1", name="search", arguments={"query": "x" * 3_500})
    assert turn_tokens(ModelTurn(tool_calls=(long,))) > 1_000
    assert turn_tokens(ModelTurn()) == 0


def test_arguments_that_are_no_json_are_output_as_well() -> None:
    """A call that was cut off at the output limit was written up to there."""
    cut = ToolCall(call_id="1", name="write", arguments={}, invalid_arguments='{"text": "' + "x" * 3_500)
    assert turn_tokens(ModelTurn(tool_calls=(cut,), finish_reason="length")) > 1_000


def test_the_frame_is_what_every_request_carries() -> None:
    """Instructions, and each tool with its schema."""
    spec = ToolSpec(name="search", description="Find.", parameters={"type": "object", "properties": {}})
    tool = text_tokens("searchFind." + json.dumps(spec.parameters))
    assert frame_tokens(None, []) == 0
    assert frame_tokens("", [spec]) == tool
    assert frame_tokens("Be brief.", [spec, spec]) == text_tokens("Be brief.") + 2 * tool


def test_what_the_provider_measured_replaces_the_estimate() -> None:
    """The newest measured turn tells the size of all before it; only what came since is estimated."""
    size = ContextSize(frame_tokens=50)
    history: list[Message] = [UserMessage(content="x" * 350)]
    assert size.of(history) == 50 + MESSAGE_TOKENS + 101
    history.append(ModelTurn(text="y", usage=Usage(input_tokens=80, output_tokens=7)))
    assert size.of(history) == 87
    history.append(ToolReturn(call_id="1", name="t", content="abcdefg"))
    assert size.of(history) == 87 + MESSAGE_TOKENS + 3


@pytest.mark.parametrize("usage", [None, Usage(input_tokens=80, output_tokens=7, measured=False)])
def test_a_turn_without_measured_usage_is_estimated(usage: Usage | None) -> None:
    """An estimate is not taken for a measurement, not even one that was kept as usage."""
    size = ContextSize(frame_tokens=50)
    history = [UserMessage(content="abcdefg"), ModelTurn(text="abcdefg", usage=usage)]
    assert size.of(history) == 50 + 2 * (MESSAGE_TOKENS + 3)


@given(histories, st.integers(0, 1_000), st.data())
def test_asking_on_the_way_changes_no_estimate(history: list[Message], frame: int, data: st.DataObject) -> None:
    """However often it is asked while the conversation grows, the answer is that of the whole."""
    size = ContextSize(frame)
    for end in data.draw(st.lists(st.integers(0, len(history)), max_size=5).map(sorted)):
        size.of(history[:end])
    assert size.of(history) == ContextSize(frame).of(history) >= 0


def test_a_measured_history_of_another_agent_does_not_hide_the_frame_of_this_one() -> None:
    """What was measured in an earlier conversation was measured with other instructions and tools.

    An agent with long instructions that is given such a history sends them as well.
    """
    history: list[Message] = [
        UserMessage(content="Go"),
        ModelTurn(text="Done", usage=Usage(input_tokens=10, output_tokens=5)),
        UserMessage(content="Go on"),
    ]
    size = ContextSize(5_000, earlier=len(history) - 1)
    assert size.of(history) == 5_000 + sum(message_tokens(message) for message in history)
    history.append(ModelTurn(text="Done", usage=Usage(input_tokens=5_100, output_tokens=5)))
    assert size.of(history) == 5_105
