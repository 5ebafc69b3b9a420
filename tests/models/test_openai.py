"""`OpenAIModel` against a server on loopback: every byte goes through a socket."""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING, Any

import anyio
import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from endstop._errors import ContextOverflow, ModelError
from endstop._messages import ModelTurn, ToolCall, ToolReturn, ToolSpec, UserMessage
from endstop.models.base import Delta, ModelRequest
from endstop.models.openai import OpenAIModel
from tests.models.fake_openai import (
    ANSWER,
    ANSWERED,
    FakeOpenAI,
    Heard,
    Reply,
    chunk,
    events,
    message,
    stream,
    tool_call,
    whole,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

KEY = "sk-very-secret-key"
QUESTION = ModelRequest(messages=(UserMessage(content="Where is the switch?"),))
SEARCH = ToolSpec(name="search", description="Searches.", parameters={"type": "object", "properties": {}})

CALLS = [
    chunk(
        role="assistant",
        content=None,
        tool_calls=[tool_call(index=0, id="a", type="function", name="search", arguments="")],
    ),
    chunk(tool_calls=[tool_call(index=0, arguments='{"q": "sw')]),
    chunk(tool_calls=[tool_call(index=1, id="b", type="function", name="open", arguments='{"n"')]),
    chunk(tool_calls=[tool_call(index=0, arguments='itch"}')]),
    chunk(tool_calls=[tool_call(index=1, arguments=": 1}")]),
    chunk(finish="tool_calls"),
]
CALLED = ModelTurn(
    tool_calls=(
        ToolCall(call_id="a", name="search", arguments={"q": "switch"}),
        ToolCall(call_id="b", name="open", arguments={"n": 1}),
    ),
    finish_reason="tool_calls",
    model="m",
)


@pytest.fixture
def server() -> Iterator[FakeOpenAI]:
    """A server without a script."""
    with FakeOpenAI() as fake:
        yield fake


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """The variables of the machine are none of the tests' business."""
    for name in ("OPENAI_BASE_URL", "OPENAI_API_KEY", "OPENAI_MODEL"):
        monkeypatch.delenv(name, raising=False)


def at(server: FakeOpenAI, **options: Any) -> OpenAIModel:
    """A model behind the server."""
    return OpenAIModel("m", base_url=server.base_url, api_key=KEY, **options)


async def ask(server: FakeOpenAI, reply: Reply, request: ModelRequest = QUESTION, **options: Any) -> ModelTurn:
    """The turn that the model makes of a reply; what it gives as deltas is what it has as text."""
    server.replies.append(reply)
    heard = Heard()
    async with at(server, **options) as model:
        turn = await model.respond(request, heard)
    assert heard.text() in ("", turn.text)
    return turn


async def refusal(server: FakeOpenAI, reply: Reply, **options: Any) -> ModelError:
    """The error that the model makes of a reply; it never tells the key."""
    with pytest.raises(ModelError) as caught:
        await ask(server, reply, **options)
    assert KEY not in "".join(traceback.format_exception(caught.value)) + repr(caught.value)
    assert server.base_url in str(caught.value)
    return caught.value


# -- answers -------------------------------------------------------------------------------------------


@pytest.mark.both_backends
async def test_a_streamed_answer(server: FakeOpenAI) -> None:
    """Text comes as deltas, usage in a chunk without choices, and the request says how to answer."""
    heard = Heard()
    server.replies.append(stream(events(ANSWER)))
    async with at(server, temperature=0, extra_body={"seed": 7}) as model:
        assert await model.respond(QUESTION, heard) == ANSWERED
    assert [delta.text for delta in heard] == ["At the ", "énd ⏹"]
    (received,) = server.received
    assert received.path == "/v1/chat/completions"
    assert received.headers["authorization"] == f"Bearer {KEY}"
    assert received.headers["content-type"] == "application/json"
    assert received.body == {
        "model": "m",
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0,
        "seed": 7,
        "messages": [{"role": "user", "content": "Where is the switch?"}],
    }


@pytest.mark.both_backends
async def test_a_whole_answer(server: FakeOpenAI) -> None:
    """Without streaming there are no deltas, and the turn is the same."""
    usage = {"prompt_tokens": 9, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 2}}
    heard = Heard()
    server.replies.append(whole(message("At the énd ⏹", usage=usage)))
    async with at(server, stream=False) as model:
        assert await model.respond(QUESTION, heard) == ANSWERED
    assert heard == []
    assert "stream" not in server.received[0].body


async def test_a_server_that_does_not_stream(server: FakeOpenAI) -> None:
    """A whole answer is taken also where a stream was asked for."""
    assert (await ask(server, whole(message("Here.")))).text == "Here."


SPLITS = st.lists(st.integers(1, 1200), max_size=12)


@given(
    splits=SPLITS,
    newline=st.sampled_from([b"\n", b"\r\n", b"\r"]),
    done=st.booleans(),
    ascii_only=st.booleans(),
    calls=st.booleans(),
)
def test_the_pieces_in_which_a_stream_arrives_do_not_matter(
    splits: list[int], newline: bytes, done: bool, ascii_only: bool, calls: bool
) -> None:
    """Split anywhere, inside a character too, with any line ending, with or without `[DONE]`: the same turn."""
    data = events(CALLS if calls else ANSWER, newline=newline, done=done, ascii_only=ascii_only)

    async def main() -> ModelTurn:
        return await ask(SHARED, stream(data, at=splits))

    assert anyio.run(main) == (CALLED if calls else ANSWERED)


SHARED = FakeOpenAI()


@pytest.fixture(scope="module", autouse=True)
def shared_server() -> Iterator[None]:
    """One server for all examples of a property."""
    with SHARED:
        yield


async def test_comments_and_unknown_fields_in_a_stream_are_passed_over(server: FakeOpenAI) -> None:
    """Servers keep a connection alive with comments and empty events."""
    data = b": OPENROUTER PROCESSING\n\n:\n\ndata:\n\nid: 7\nretry: 10\nwhatever: x\n" + events(ANSWER)
    assert await ask(server, stream(b"\xef\xbb\xbf" + data)) == ANSWERED


async def test_line_separators_inside_an_event_do_not_end_it(server: FakeOpenAI) -> None:
    """JSON may hold U+2028 and others as they are; only line feeds and carriage returns end a line of a stream."""
    text = "a\u2028b\u2029c\x85d\x0be\x0cf\x1cg"
    assert (await ask(server, stream(events([chunk(content=text), chunk(finish="stop")])))).text == text


async def test_a_stream_may_end_where_the_answer_does(server: FakeOpenAI) -> None:
    """A connection that breaks after the answer's end takes nothing away; only the usage may be missing."""
    turn = await ask(server, stream(events(ANSWER[:4], done=False), cut=True))
    assert (turn.text, turn.usage) == ("At the énd ⏹", None)


async def test_a_stream_that_only_says_done(server: FakeOpenAI) -> None:
    """Some servers give no finish reason."""
    assert (await ask(server, stream(events(ANSWER[:3])))).finish_reason == "stop"


@pytest.mark.parametrize("done", [True, False])
async def test_a_connection_that_stays_open_after_the_answer_is_not_waited_for(server: FakeOpenAI, done: bool) -> None:
    """The end of the stream is awaited for a moment, its usage for a little longer, and never as long as an answer."""
    reply = stream(events(ANSWER[:4], done=done), hold=True)
    assert (await ask(server, reply, timeout_seconds=60 if done else 0.1)).text == "At the énd ⏹"
    assert await anyio.to_thread.run_sync(server.client_left.wait, 10)


async def test_a_connection_is_used_again(server: FakeOpenAI) -> None:
    """A stream is read to its end, so that the next round needs no new connection."""
    server.replies += [stream(events(ANSWER)), whole(message("x")), whole({}, status=429), stream(events(CALLS))]
    async with at(server) as model:
        for expected in ("At the énd ⏹", "x"):
            assert (await model.respond(QUESTION, Heard())).text == expected
        with pytest.raises(ModelError):
            await model.respond(QUESTION, Heard())
        await model.respond(QUESTION, Heard())
    assert server.connections == 1


async def test_a_conversation_is_replayed_as_the_provider_wrote_it(server: FakeOpenAI) -> None:
    """What the kernel has no field for comes back in the next request, on the message and on the call."""
    call = tool_call(
        index=0, id="a", name="search", arguments="{}", extra_content={"google": {"thought_signature": "x"}}
    )
    chunks = [
        chunk(reasoning_content="Let me"),
        chunk(reasoning_content=" see.", vendor={"k": 1}),
        chunk(tool_calls=[call]),
        chunk(finish="tool_calls"),
    ]
    server.replies += [stream(events(chunks)), stream(events(ANSWER))]
    async with at(server) as model:
        first = await model.respond(QUESTION, heard := Heard())
        answer = ToolReturn(call_id="a", name="search", content="Found.")
        await model.respond(ModelRequest(messages=[*QUESTION.messages, first, answer], tools=(SEARCH,)), Heard())
    assert heard == [Delta(text="Let me", kind="thinking"), Delta(text=" see.", kind="thinking")]
    assert first.thinking == "Let me see."
    assert server.received[1].body["messages"][1:] == [
        {
            "role": "assistant",
            "content": None,
            "reasoning_content": "Let me see.",
            "vendor": {"k": 1},
            "tool_calls": [
                {
                    "id": "a",
                    "type": "function",
                    "function": {"name": "search", "arguments": "{}"},
                    "extra_content": {"google": {"thought_signature": "x"}},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "a", "content": "Found."},
    ]


async def test_a_call_cut_by_the_length_is_not_replayed_broken(server: FakeOpenAI) -> None:
    """Providers refuse a history with broken JSON: the call is kept, its arguments are not."""
    call = tool_call(index=0, id="a", name="search", arguments='{"q": "swi')
    server.replies += [stream(events([chunk(tool_calls=[call]), chunk(finish="length")])), stream(events(ANSWER))]
    async with at(server) as model:
        first = await model.respond(QUESTION, Heard())
        answer = ToolReturn(call_id="a", name="search", content="Cut.", status="error")
        await model.respond(ModelRequest(messages=[*QUESTION.messages, first, answer]), Heard())
    assert first.finish_reason == "length"
    assert first.tool_calls == (ToolCall(call_id="a", name="search", arguments={}, invalid_arguments='{"q": "swi'),)
    assert server.received[1].body["messages"][1]["tool_calls"][0]["function"]["arguments"] == "{}"


# -- failures ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503, 529])
async def test_a_failure_that_may_pass(server: FakeOpenAI, status: int) -> None:
    """Overload and server trouble can be retried, after the time that the server asks for."""
    body = {"error": {"message": "Slow down", "type": "rate_limit_exceeded", "code": None}}
    error = await refusal(server, whole(body, status=status, headers={"Retry-After": "2.5"}))
    assert (error.retryable, error.retry_after_seconds, error.status) == (True, 2.5, status)
    assert f"answered {status}: Slow down" in str(error)


@pytest.mark.parametrize("status", [400, 401, 403, 404, 422, 501])
async def test_a_failure_that_is_final(server: FakeOpenAI, status: int) -> None:
    """A request that is wrong stays wrong; the provider's own words are in the error."""
    body = {"error": {"message": f"No such thing for {KEY}", "type": "invalid_request_error"}}
    error = await refusal(server, whole(body, status=status, headers={"Retry-After": "2"}))
    assert (error.retryable, error.retry_after_seconds, error.status) == (False, None, status)
    assert "No such thing for ***" in str(error)


async def test_context_overflow_over_the_wire(server: FakeOpenAI) -> None:
    """The request is too long for the model, in llama.cpp's words."""
    body = {
        "error": {
            "code": 400,
            "message": "request (9000 tokens) exceeds the available context size (4096 tokens), try increasing it",
            "type": "exceed_context_size_error",
            "n_prompt_tokens": 9000,
        }
    }
    error = await refusal(server, whole(body, status=400))
    assert isinstance(error, ContextOverflow)
    assert (error.retryable, error.status) == (False, 400)


async def test_a_redirect_is_not_followed(server: FakeOpenAI) -> None:
    """The key goes nowhere but to the given address."""
    error = await refusal(server, whole(b"", status=301, headers={"Location": "https://elsewhere.example/v1"}))
    assert not error.retryable
    assert "https://elsewhere.example/v1" in str(error)


@pytest.mark.parametrize(("chunks", "done"), [([], False), (ANSWER[:2], False), (CALLS[:3], False)])
@pytest.mark.parametrize("cut", [True, False])
async def test_a_stream_that_ends_in_the_middle(server: FakeOpenAI, chunks: list[Any], done: bool, cut: bool) -> None:
    """Half an answer is no answer, whether the connection broke or was closed in good order."""
    error = await refusal(server, stream(events(chunks, done=done), cut=cut))
    assert (error.retryable, error.status) == (True, None)


async def test_a_connection_that_closes_without_an_answer(server: FakeOpenAI) -> None:
    """Nothing was said, so the request may be sent again."""
    assert (await refusal(server, Reply(pieces=[], cut=True))).retryable


async def test_an_error_inside_a_stream(server: FakeOpenAI) -> None:
    """A failure after the first words comes as an event."""
    failed = {"error": {"code": 502, "message": "Provider disconnected"}, **chunk(finish="error")}
    error = await refusal(server, stream(events([*ANSWER[:2], failed])))
    assert (error.retryable, error.status) == (True, 502)
    assert "Provider disconnected" in str(error)


async def test_an_event_that_is_called_error(server: FakeOpenAI) -> None:
    """Some servers name the event, and send the bare error in it, or bare text."""
    bare = b'event: error\ndata: {"message": "Bad grammar", "type": "invalid_request_error"}\n\n'
    error = await refusal(server, stream(bare))
    assert (error.retryable, "Bad grammar" in str(error)) == (False, True)
    error = await refusal(server, stream(b"event: error\ndata: out of memory\n\n"))
    assert (error.retryable, "out of memory" in str(error)) == (True, True)


async def test_an_event_that_is_no_json(server: FakeOpenAI) -> None:
    """A garbled stream is named as such, with what was garbled."""
    error = await refusal(server, stream(b'data: {"choices": [{"del\n\n'))
    assert error.retryable
    assert '{"choices": [{"del' in str(error)


@pytest.mark.parametrize("streaming", [True, False])
async def test_an_error_in_a_whole_answer(server: FakeOpenAI, streaming: bool) -> None:
    """200 does not mean that it worked."""
    error = await refusal(server, whole({"error": {"message": "Overloaded"}}), stream=streaming)
    assert (error.retryable, "Overloaded" in str(error)) == (True, True)


@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        (b"<html><body>Welcome to the proxy</body></html>", "text/html"),
        (b"", "application/json"),
        (b"[1]", "application/json"),
        (b'{"choices": []}', "application/json"),
        (b'{"choices": [{"text": "an older form"}]}', "application/json"),
    ],
)
async def test_an_answer_that_is_no_chat_completion(server: FakeOpenAI, body: bytes, content_type: str) -> None:
    """A wrong address or a proxy often answers 200: the error shows with what."""
    error = await refusal(server, whole(body, headers={"Content-Type": content_type}))
    assert not error.retryable
    assert content_type in str(error)
    assert body.decode() in str(error)


async def test_a_broken_encoding(server: FakeOpenAI) -> None:
    """Bytes that are not what the header says are the connection's trouble."""
    assert (await refusal(server, whole(b"not gzip", headers={"Content-Encoding": "gzip"}))).retryable


async def test_a_server_that_is_not_there() -> None:
    """The error names the address, and may pass: the server may be starting."""
    with FakeOpenAI() as gone:
        model = at(gone)
    with pytest.raises(ModelError, match="could not be reached") as caught:
        await model.respond(QUESTION, Heard())
    assert caught.value.retryable
    assert gone.base_url in str(caught.value)


async def test_a_silent_server(server: FakeOpenAI) -> None:
    """Silence is bounded, before the first byte and between two."""
    for reply in (Reply(pieces=[], hold=True), stream(events(ANSWER[:2], done=False), hold=True)):
        error = await refusal(server, reply, timeout_seconds=0.05)
        assert error.retryable
        assert "sent nothing for 0.05 s" in str(error)


async def test_a_client_that_cannot_send_it(server: FakeOpenAI) -> None:
    """What the client itself refuses would be refused again."""
    async with httpx.AsyncClient(trust_env=False, headers={"x-bad": "line\nbreak"}) as client:
        error = await refusal(server, Reply(pieces=[]), http_client=client)
    assert not error.retryable


async def test_an_error_of_the_listener_is_not_the_endpoints(server: FakeOpenAI) -> None:
    """What `on_delta` raises goes to the caller as it is, and the request is given up."""

    async def fail(delta: Delta) -> None:
        raise ZeroDivisionError

    server.replies.append(stream(events(ANSWER[:3], done=False), hold=True))
    with pytest.raises(ZeroDivisionError):
        await at(server).respond(QUESTION, fail)
    assert await anyio.to_thread.run_sync(server.client_left.wait, 10)


# -- cancellation --------------------------------------------------------------------------------------


@pytest.mark.both_backends
@pytest.mark.parametrize("started", [True, False])
async def test_a_cancelled_request_frees_the_server(server: FakeOpenAI, started: bool) -> None:
    """The connection is closed at once, so that the server stops to write what nobody reads."""
    server.replies.append(stream(events(ANSWER[:3], done=False), hold=True) if started else Reply(pieces=[], hold=True))
    first_word = anyio.Event()

    async def hear(delta: Delta) -> None:
        first_word.set()

    async with at(server) as model, anyio.create_task_group() as group:
        group.start_soon(model.respond, QUESTION, hear)
        if started:
            await first_word.wait()
        else:
            assert await anyio.to_thread.run_sync(server.arrived.wait, 10)
        group.cancel_scope.cancel()
    assert await anyio.to_thread.run_sync(server.client_left.wait, 10)


async def test_a_model_can_be_used_after_a_cancelled_request(server: FakeOpenAI) -> None:
    """A cancellation leaves nothing behind."""
    server.replies += [Reply(pieces=[], hold=True), stream(events(ANSWER))]
    async with at(server) as model:
        with anyio.move_on_after(0.05):
            await model.respond(QUESTION, Heard())
        assert await model.respond(QUESTION, Heard()) == ANSWERED
