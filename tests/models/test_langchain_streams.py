"""Streamed answers of LangChain chat models."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
)

from endstop._errors import ContextOverflow, ModelError
from endstop._messages import (
    ToolCall,
    Usage,
)
from endstop.models.base import Delta
from endstop.models.langchain import LangChainModel
from tests.models.fake_langchain import (
    QUESTION,
    FakeChat,
    Heard,
    StreamingChat,
    answer_of,
    call_chunk,
    chunks,
    ignore,
)


async def test_pieces_are_given_as_they_come() -> None:
    """Text and thinking stream in order, and joined they are the turn's."""
    heard = Heard()
    pieces = [
        AIMessageChunk("", additional_kwargs={"reasoning_content": "h"}),
        AIMessageChunk("", additional_kwargs={"reasoning_content": "m"}),
        AIMessageChunk([{"type": "text", "text": "He", "index": 0}]),
        AIMessageChunk([{"type": "text", "text": "llo", "index": 0}]),
    ]
    turn = await LangChainModel(StreamingChat(answers=[pieces])).respond(QUESTION, heard)
    assert (turn.text, turn.thinking) == ("Hello", "hm")
    assert heard == [
        Delta(text="h", kind="thinking"),
        Delta(text="m", kind="thinking"),
        Delta(text="He"),
        Delta(text="llo"),
    ]


async def test_streamed_calls_are_put_together() -> None:
    """Calls split over chunks, two at a time, are whole in the end, with the usage of the last chunk."""
    usage: Any = {"input_tokens": 5, "output_tokens": 2, "total_tokens": 7}
    pieces = [
        *chunks("Looking.")[:1],
        call_chunk(0, "", "search", "c1"),
        call_chunk(0, '{"q": '),
        call_chunk(1, '{"q"', "open", "c2"),
        call_chunk(0, '"a"}'),
        call_chunk(1, ': "b"}'),
        AIMessageChunk("", usage_metadata=usage, response_metadata={"finish_reason": "tool_calls"}),
    ]
    turn = await answer_of(pieces)
    assert turn.tool_calls == (
        ToolCall(call_id="c1", name="search", arguments={"q": "a"}),
        ToolCall(call_id="c2", name="open", arguments={"q": "b"}),
    )
    assert (turn.text, turn.finish_reason, turn.usage) == (
        "Looking.",
        "tool_calls",
        Usage(input_tokens=5, output_tokens=2),
    )


async def test_a_streamed_call_without_arguments_is_a_call() -> None:
    """Empty arguments are none."""
    turn = await answer_of([call_chunk(0, "", "now", "c1")])
    assert turn.tool_calls == (ToolCall(call_id="c1", name="now", arguments={}),)


async def test_a_call_that_was_cut_before_its_arguments_is_broken() -> None:
    """Only where the answer was cut: the arguments may have been anything."""
    ending = AIMessageChunk("", response_metadata={"finish_reason": "length"})
    turn = await answer_of([call_chunk(0, "{}", "now", "c1"), call_chunk(1, "", "delete", "c2"), ending])
    assert turn.tool_calls == (
        ToolCall(call_id="c1", name="now", arguments={}),
        ToolCall(call_id="c2", name="delete", arguments={}, invalid_arguments=""),
    )


async def test_what_was_not_streamed_is_given_at_the_end() -> None:
    """A refusal that only the whole message shows is told after the pieces, so that joined they are the text."""
    heard = Heard()
    refusal = [AIMessageChunk("", additional_kwargs={"refusal": "I cannot."})]
    turn = await LangChainModel(StreamingChat(answers=[refusal])).respond(QUESTION, heard)
    assert (turn.text, heard) == ("I cannot.", [Delta(text="I cannot.")])


async def test_a_chat_model_that_cannot_stream_gives_no_pieces() -> None:
    """Its answer comes as a whole, streaming asked for or not."""
    heard = Heard()
    for stream in (True, False):
        turn = await LangChainModel(FakeChat(answers=[AIMessage("whole")]), stream=stream).respond(QUESTION, heard)
        assert (turn.text, heard) == ("whole", [])


async def test_streaming_can_be_off() -> None:
    """Without `stream`, a chat model that could stream is asked for the whole answer."""
    heard = Heard()
    model = LangChainModel(StreamingChat(answers=[chunks("one ", "two")]), stream=False)
    assert ((await model.respond(QUESTION, heard)).text, heard) == ("one two", [])


async def test_an_error_while_telling_is_the_callers() -> None:
    """What `on_delta` raises comes out as it is, and the stream is closed."""

    async def refuse(delta: Delta) -> None:
        raise LookupError(delta.text)

    chat = StreamingChat(answers=[chunks("one", "two")])
    with pytest.raises(LookupError, match="one"):
        await LangChainModel(chat).respond(QUESTION, refuse)
    assert chat.closed == [True]


async def test_a_cancelled_stream_is_closed() -> None:
    """Cancelling in the middle of an answer closes the stream, and the model can be asked again."""
    chat = StreamingChat(answers=[chunks("one", "two"), chunks("three")])
    model = LangChainModel(chat)
    with anyio.CancelScope() as scope:

        async def cancel(delta: Delta) -> None:
            scope.cancel()
            await anyio.sleep_forever()

        await model.respond(QUESTION, cancel)
    assert (scope.cancelled_caught, chat.closed) == (True, [True])
    assert (await model.respond(QUESTION, ignore)).text == "three"


async def test_an_error_in_a_stream_is_a_model_error() -> None:
    """A provider that fails after some pieces is a model error, the pieces given."""
    heard = Heard()
    chat = StreamingChat(answers=[[AIMessageChunk("one"), ConnectionResetError("gone")]])
    with pytest.raises(ModelError, match="ConnectionResetError: gone") as caught:
        await LangChainModel(chat).respond(QUESTION, heard)
    assert (caught.value.retryable, heard) == (True, [Delta(text="one")])


async def test_a_stream_without_an_answer_is_an_error() -> None:
    """A stream that ends before it began is no empty answer."""
    with pytest.raises(ModelError, match="No generation chunks"):
        await answer_of([])


class Iterating(FakeChat):
    """A chat model with a stream of its own, which is no generator, and empty."""

    def __aiter__(self) -> Any:
        return self

    async def __anext__(self) -> AIMessageChunk:
        raise StopAsyncIteration

    def astream(self, *_: Any, **__: Any) -> Any:
        """Itself, which ends at once."""
        return self


async def test_an_empty_stream_of_another_kind_is_an_error() -> None:
    """Whatever kind of iterator a chat model streams with, one that gives nothing is no answer."""
    with pytest.raises(ModelError, match="ended its stream without an answer"):
        await LangChainModel(Iterating(answers=[])).respond(QUESTION, ignore)


@pytest.mark.parametrize("stream", [True, False])
async def test_what_a_chat_model_raises_is_a_model_error(stream: bool) -> None:
    """The original exception is the cause; an error of endstop's own passes as it is."""
    original, own = ConnectionResetError("gone"), ContextOverflow("mine")
    chat = StreamingChat(answers=[original, own])
    with pytest.raises(ModelError) as caught:
        await LangChainModel(chat, stream=stream).respond(QUESTION, ignore)
    assert (caught.value.__cause__, caught.value.retryable) == (original, True)
    with pytest.raises(ContextOverflow, match="mine"):
        await LangChainModel(chat, stream=stream).respond(QUESTION, ignore)
