"""The contracts of `Model`. Each is a function whose docstring is the rule; `endstop.testing.models` runs them."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import anyio

from endstop._errors import ContextOverflow, ModelError
from endstop._messages import (
    FilePart,
    ImagePart,
    JsonObject,
    Message,
    ModelTurn,
    TextPart,
    ToolCall,
    ToolReturn,
    ToolSpec,
    Usage,
    UserMessage,
)
from endstop._state import dump_messages, load_messages
from endstop.models.base import Delta, Model, ModelRequest
from endstop.testing._model_wire import (
    Check,
    Contract,
    ContractBroken,
    ModelHarness,
    Unsupported,
    WireAnswer,
    WireCall,
    WireFailure,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

CONTRACTS: list[Contract] = []
"""Every contract, in order."""


def _contract(check: Check) -> Check:
    """Adds a contract: its docstring is the rule."""
    name, rule = check.__name__, (check.__doc__ or "").strip()
    CONTRACTS.append(Contract(number=len(CONTRACTS) + 1, name=name, rule=rule, check=check))
    return check


@dataclass(slots=True, kw_only=True)
class _Heard:
    """The pieces that a model gave."""

    deltas: list[Delta] = field(default_factory=list[Delta])

    async def __call__(self, delta: Delta) -> None:
        self.deltas.append(delta)

    def joined(self, kind: str) -> str:
        return "".join(delta.text for delta in self.deltas if delta.kind == kind)


_QUESTION = UserMessage(content="What is an endstop?")
_SEARCH = ToolSpec(
    name="search",
    description="Searches the documents.",
    parameters={"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]},
)


def _asked(*messages: Message) -> ModelRequest:
    return ModelRequest(messages=messages or (_QUESTION,), tools=(_SEARCH,))


async def _answer(harness: ModelHarness, answer: WireAnswer, request: ModelRequest | None = None) -> ModelTurn:
    async with harness.model([answer]) as model:
        return await model.respond(request or _asked(), _Heard())


async def _failure(harness: ModelHarness, answer: WireAnswer) -> ModelError:
    try:
        turn = await _answer(harness, answer)
    except ModelError as error:
        return error
    raise ContractBroken(f"a provider that fails with {answer.failure} must raise a ModelError; got {turn}")


def _equal(what: str, got: object, wanted: object) -> None:
    if got != wanted:
        raise ContractBroken(f"{what} must be {_cut(wanted)}; got {_cut(got)}")


def _cut(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 500 else f"{text[:500]}..."


def _said(message: Message) -> tuple[object, ...]:
    """What of a message every provider's form can hold."""
    if isinstance(message, UserMessage):
        return ("user", message.content)
    if isinstance(message, ModelTurn):
        return ("model", message.text, [(call.call_id, call.name, call.arguments) for call in message.tool_calls])
    return ("tool", message.call_id, message.content)


def _sent(harness: ModelHarness, position: int, messages: Sequence[Message]) -> ModelRequest:
    """The request that the provider got at a position, which must have these messages."""
    requests = harness.requests()
    if len(requests) <= position:
        raise ContractBroken(f"the provider must get {position + 1} requests; it got {len(requests)}")
    _equal(
        "the history sent", [_said(each) for each in requests[position].messages], [_said(each) for each in messages]
    )
    return requests[position]


# What comes back


@_contract
async def text_is_answered(harness: ModelHarness) -> None:
    """An answer's text arrives whole, from a model that has a name, and ends in `stop`."""
    async with harness.model([WireAnswer(text=("An endstop ", "stops ", "the axis."))]) as model:
        turn = await model.respond(_asked(), _Heard())
    if not model.name:
        raise ContractBroken("the model must have a name")
    _equal("text", turn.text, "An endstop stops the axis.")
    _equal("(tool_calls, finish_reason)", (turn.tool_calls, turn.finish_reason), ((), "stop"))


@_contract
async def deltas_are_the_text(harness: ModelHarness) -> None:
    """The pieces of an adapter that streams are, joined in order, the turn's text."""
    heard = _Heard()
    async with harness.model([WireAnswer(text=("An ", "end", "stop.\n", " "))]) as model:
        turn = await model.respond(_asked(), heard)
    if heard.deltas:
        _equal("the deltas joined", heard.joined("text"), turn.text)
    if any(not delta.text for delta in heard.deltas):
        raise ContractBroken("a delta must have text; got an empty one")


@_contract
async def thinking_is_no_text(harness: ModelHarness) -> None:
    """Reasoning that the provider exposes is `thinking`, in the turn and in the deltas."""
    heard = _Heard()
    async with harness.model([WireAnswer(thinking=("Let me ", "see."), text=("It stops.",))]) as model:
        turn = await model.respond(_asked(), heard)
    _equal("(text, thinking)", (turn.text, turn.thinking), ("It stops.", "Let me see."))
    if heard.deltas:
        _equal("the deltas joined", (heard.joined("text"), heard.joined("thinking")), ("It stops.", "Let me see."))


@_contract
async def an_empty_answer_is_an_answer(harness: ModelHarness) -> None:
    """A model that says nothing is no error."""
    turn = await _answer(harness, WireAnswer())
    _equal("(text, tool_calls)", (turn.text, turn.tool_calls), ("", ()))


@_contract
async def a_call_is_read(harness: ModelHarness) -> None:
    """A tool call has the provider's id, the tool's name and the arguments as an object, split as they may be."""
    pieces = ('{"q"', ': "caf\\u00e9 ☕", "n": [1, ', 'null], "deep": {"a": ', "true}}")
    turn = await _answer(harness, WireAnswer(calls=(WireCall(name="search", arguments=pieces, call_id="call_7"),)))
    arguments: JsonObject = {"q": "café ☕", "n": [1, None], "deep": {"a": True}}
    _equal("tool_calls", turn.tool_calls, (ToolCall(call_id="call_7", name="search", arguments=arguments),))
    _equal("finish_reason", turn.finish_reason, "tool_calls")


@_contract
async def calls_keep_their_order(harness: ModelHarness) -> None:
    """Several calls of one turn stay in the order asked, with the text that came beside them."""
    wire = tuple(WireCall(name=name, call_id=f"call_{name}", arguments=('{"q": "x"}',)) for name in "zamb")
    turn = await _answer(harness, WireAnswer(text=("Looking.",), calls=wire))
    _equal("the calls", [(call.name, call.call_id) for call in turn.tool_calls], [(n, f"call_{n}") for n in "zamb"])
    _equal("text", turn.text, "Looking.")


@_contract
async def a_call_without_arguments_is_a_call(harness: ModelHarness) -> None:
    """Empty arguments are an empty object."""
    turn = await _answer(harness, WireAnswer(calls=(WireCall(name="now", arguments=("",)),)))
    _equal("tool_calls", turn.tool_calls, (ToolCall(call_id="call_1", name="now", arguments={}),))


@_contract
async def broken_arguments_are_kept_and_never_sent(harness: ModelHarness) -> None:
    """Arguments that are no JSON object are kept as text; in the history that is sent, the call has none."""
    for broken in ('{"q": unquoted}', '["a list"]', "not json", '{"n": NaN}'):
        call = WireCall(name="search", arguments=(broken,))
        async with harness.model([WireAnswer(calls=(call,)), WireAnswer(text=("Sorry.",))]) as model:
            turn = await model.respond(_asked(), _Heard())
            kept = ToolCall(call_id="call_1", name="search", arguments={}, invalid_arguments=broken)
            _equal("tool_calls", turn.tool_calls, (kept,))
            answered = (_QUESTION, turn, ToolReturn(call_id="call_1", name="search", content="bad", status="error"))
            await model.respond(_asked(*answered), _Heard())
        _sent(harness, 1, answered)


@_contract
async def a_cut_call_is_not_completed(harness: ModelHarness) -> None:
    """Arguments that were cut off by the output cap are broken, never closed by guessing; the turn says `length`."""
    call = WireCall(name="delete", arguments=('{"path": "/', "home"))
    turn = await _answer(harness, WireAnswer(calls=(call,), finish_reason="length"))
    cut = ToolCall(call_id="call_1", name="delete", arguments={}, invalid_arguments='{"path": "/home')
    _equal("tool_calls", turn.tool_calls, (cut,))
    _equal("finish_reason", turn.finish_reason, "length")


@_contract
async def usage_is_reported(harness: ModelHarness) -> None:
    """Tokens are the provider's own numbers, those from its cache among the input; without a report there is none."""
    usage = Usage(input_tokens=120, output_tokens=7, cached_input_tokens=64)
    _equal("usage", (await _answer(harness, WireAnswer(text=("a",), usage=usage))).usage, usage)
    _equal("usage", (await _answer(harness, WireAnswer(text=("a",)))).usage, None)


@_contract
async def the_reason_of_the_end_is_told(harness: ModelHarness) -> None:
    """An answer that was cut or filtered says so."""
    for reason in ("stop", "length", "content_filter"):
        turn = await _answer(harness, WireAnswer(text=("a",), finish_reason=reason))
        _equal("finish_reason", turn.finish_reason, reason)


@_contract
async def a_refusal_is_told(harness: ModelHarness) -> None:
    """A refusal is the turn's text, so that a person sees it, and its reason, so that a program does."""
    heard = _Heard()
    async with harness.model([WireAnswer(refusal="I cannot help with that.")]) as model:
        turn = await model.respond(_asked(), heard)
    _equal("(text, finish_reason)", (turn.text, turn.finish_reason), ("I cannot help with that.", "refusal"))
    if heard.deltas:
        _equal("the deltas joined", heard.joined("text"), turn.text)


@_contract
async def any_text_survives(harness: ModelHarness) -> None:
    """Text of every script, quotes, control characters and line ends pass both ways unchanged."""
    text = 'naïve 文字 שלום 👩‍🚀 "quoted" \\ \t\r\n\u2028\x7f{"a": 1}</s> data: x'
    asked = UserMessage(content=text)
    turn = await _answer(harness, WireAnswer(text=tuple(text)), _asked(asked))
    _equal("text", turn.text, text)
    _sent(harness, 0, [asked])


@_contract
async def huge_texts_survive(harness: ModelHarness) -> None:
    """A megabyte in the history and a long answer pass whole."""
    asked, text = UserMessage(content="é long " * 150_000), "word " * 20_000
    turn = await _answer(harness, WireAnswer(text=(text[:50_000], text[50_000:])), _asked(asked))
    _equal("text", turn.text, text)
    _sent(harness, 0, [asked])


# What fails


@_contract
async def passing_failures_are_retryable(harness: ModelHarness) -> None:
    """A rate limit, a server error and a connection that fails may pass; the status is told where there is one."""
    for status in (408, 429, 500, 503):
        error = await _failure(harness, WireAnswer(failure=WireFailure(status=status)))
        _equal(f"(retryable, status) of {status}", (error.retryable, error.status), (True, status))
    error = await _failure(harness, WireAnswer(failure=WireFailure(kind="connection")))
    _equal("(retryable, status) of a connection that fails", (error.retryable, error.status), (True, None))


@_contract
async def final_failures_are_not_retryable(harness: ModelHarness) -> None:
    """A request that the provider refuses is refused again."""
    for status in (400, 401, 403, 404):
        error = await _failure(harness, WireAnswer(failure=WireFailure(status=status)))
        _equal(f"(retryable, status) of {status}", (error.retryable, error.status), (False, status))


@_contract
async def the_wait_is_told(harness: ModelHarness) -> None:
    """What the provider asks to wait is told; without that, nothing is made up."""
    for wait_seconds in (7, None):
        failure = WireFailure(status=429, retry_after_seconds=wait_seconds)
        error = await _failure(harness, WireAnswer(failure=failure))
        _equal("retry_after_seconds", error.retry_after_seconds, wait_seconds)


@_contract
async def an_overflow_is_told_apart(harness: ModelHarness) -> None:
    """A request that is longer than the model's context is a `ContextOverflow`, and not retryable."""
    error = await _failure(harness, WireAnswer(failure=WireFailure(kind="context_overflow", status=400)))
    _equal("(type, retryable)", (type(error), error.retryable), (ContextOverflow, False))


@_contract
async def an_answer_that_breaks_off_is_an_error(harness: ModelHarness) -> None:
    """Half an answer is never passed off as a whole one."""
    error = await _failure(harness, WireAnswer(text=("It is ", "not "), failure=WireFailure(kind="connection")))
    _equal("retryable", error.retryable, True)


@_contract
async def a_failure_leaves_the_model_usable(harness: ModelHarness) -> None:
    """The request after one that failed is answered."""
    async with harness.model([WireAnswer(failure=WireFailure(status=503)), WireAnswer(text=("fine",))]) as model:
        try:
            await model.respond(_asked(), _Heard())
        except ModelError:
            turn = await model.respond(_asked(), _Heard())
        else:
            raise ContractBroken("a provider that fails must raise a ModelError")
    _equal("text", turn.text, "fine")


# What is sent


@_contract
async def the_history_is_sent_in_order(harness: ModelHarness) -> None:
    """Instructions, questions, turns with their calls, and every tool's return are sent, each in its place."""
    calls = tuple(ToolCall(call_id=f"c{n}", name="search", arguments={"q": f"é{n}"}) for n in range(2))
    history: list[Message] = [
        _QUESTION,
        ModelTurn(text="Looking.", tool_calls=calls, finish_reason="tool_calls"),
        ToolReturn(call_id="c0", name="search", content="An endstop is a switch."),
        ToolReturn(call_id="c1", name="search", content="no such document", status="error"),
        ModelTurn(text="A switch."),
        UserMessage(content="And then?"),
        UserMessage(content="One round is left.", source="kernel"),
    ]
    request = ModelRequest(messages=history, instructions="Answer briefly.", tools=(_SEARCH,))
    await _answer(harness, WireAnswer(text=("It stops.",)), request)
    seen = _sent(harness, 0, history)
    _equal("instructions", seen.instructions, "Answer briefly.")


@_contract
async def a_growing_history_is_sent_whole(harness: ModelHarness) -> None:
    """The list of messages of a run grows between its requests: each request has what is in it then."""
    history: list[Message] = [_QUESTION]
    async with harness.model([WireAnswer(text=(str(number),)) for number in range(3)]) as model:
        for number in range(3):
            turn = await model.respond(_asked(*history) if number else ModelRequest(messages=history), _Heard())
            _sent(harness, number, history)
            history += [turn, UserMessage(content=f"And {number}?")]


@_contract
async def a_turn_is_sent_again_as_it_came(harness: ModelHarness) -> None:
    """A turn that was stored as JSON is sent again with its text, its calls and their ids."""
    call = WireCall(name="search", arguments=('{"q": "é"}',), call_id="call_x")
    answers = [WireAnswer(text=("Looking.",), calls=(call,)), WireAnswer(text=("Done.",))]
    async with harness.model(answers) as model:
        turn = await model.respond(_asked(), _Heard())
        stored = load_messages(dump_messages([_QUESTION, turn]))
        _equal("the turn read back from JSON", stored[1], turn)
        answered = [*stored, ToolReturn(call_id="call_x", name="search", content="found")]
        await model.respond(_asked(*answered), _Heard())
    _sent(harness, 1, answered)


@_contract
async def parts_are_sent(harness: ModelHarness) -> None:
    """A prompt's text, image and file arrive, with their bytes, types and names."""
    prompt = UserMessage(
        content=(
            TextPart(text="Read these."),
            ImagePart(data=b"\x89PNG\xff", media_type="image/png"),
            FilePart(name="a.pdf", data=b"%PDF\xff", media_type="application/pdf"),
        )
    )
    await _answer(harness, WireAnswer(text=("ok",)), _asked(prompt))
    _sent(harness, 0, [prompt])


@_contract
async def tools_are_described(harness: ModelHarness) -> None:
    """The provider is told each tool's name, description and parameters."""
    await _answer(harness, WireAnswer(text=("ok",)))
    _equal("the tools sent", tuple(_sent(harness, 0, [_QUESTION]).tools), (_SEARCH,))


@_contract
async def a_final_request_offers_no_tools(harness: ModelHarness) -> None:
    """Asked for its last answer, the model is offered no tools, though it used some before."""
    call = ToolCall(call_id="c1", name="search", arguments={"q": "x"})
    found = ToolReturn(call_id="c1", name="search", content="found")
    history: list[Message] = [_QUESTION, ModelTurn(tool_calls=(call,)), found]
    await _answer(harness, WireAnswer(text=("A switch.",)), ModelRequest(messages=history, final=True))
    _equal("the tools sent", tuple(_sent(harness, 0, history).tools), ())


@_contract
async def structured_output_is_asked_for(harness: ModelHarness) -> None:
    """A schema of the answer reaches the provider, in a field of its own or in the instructions."""
    schema: JsonObject = {"type": "object", "properties": {"city_of_birth": {"type": "string"}}}
    request = ModelRequest(messages=[_QUESTION], output_schema=schema)
    await _answer(harness, WireAnswer(text=('{"city_of_birth": "Ulm"}',)), request)
    seen = _sent(harness, 0, [_QUESTION])
    if "city_of_birth" not in f"{seen.instructions} {json.dumps(seen.output_schema)}":
        raise ContractBroken(f"the schema must reach the provider; it got {_cut(seen)}")


@_contract
async def the_output_cap_is_sent(harness: ModelHarness) -> None:
    """The provider is told how long the answer may be, and nothing where there is no cap."""
    for cap in (55, None):
        await _answer(harness, WireAnswer(text=("ok",)), ModelRequest(messages=[_QUESTION], max_output_tokens=cap))
        _equal("max_output_tokens", _sent(harness, 0, [_QUESTION]).max_output_tokens, cap)


@_contract
async def lone_surrogates_are_no_obstacle(harness: ModelHarness) -> None:
    """Text that has no UTF-8 form does not keep a request from being sent and answered."""
    history: list[Message] = [
        UserMessage(content="half \ud83d"),
        ModelTurn(text="\udc80", tool_calls=(ToolCall(call_id="c1", name="search", arguments={"q": "x"}),)),
        ToolReturn(call_id="c1", name="search", content="\ud800 found"),
    ]
    turn = await _answer(harness, WireAnswer(text=("fine",)), _asked(*history))
    _equal("text", turn.text, "fine")
    _equal("the number of messages sent", len(harness.requests()[0].messages), 3)


# How it behaves


@_contract
async def concurrent_requests_do_not_mix(harness: ModelHarness) -> None:
    """Eight requests at once on one model: each gets one answer whole, and the pieces of that answer."""
    answers = [WireAnswer(text=(f"answer {number}", ", ", f"end {number}")) for number in range(8)]
    got: list[tuple[str, str]] = []

    async def ask(model: Model) -> None:
        heard = _Heard()
        turn = await model.respond(_asked(), heard)
        got.append((turn.text, heard.joined("text") or turn.text))

    async with harness.model(answers) as model, anyio.create_task_group() as group:
        for _ in answers:
            group.start_soon(ask, model)
    whole = ["".join(answer.text) for answer in answers]
    _equal("the answers and their deltas joined", sorted(got), [(text, text) for text in whole])


@_contract
async def cancellation_is_prompt(harness: ModelHarness) -> None:
    """A request that is cancelled in the middle of its answer ends at once, and the model can be asked again."""
    async with harness.model([WireAnswer(text=("one ",), hangs=True), WireAnswer(text=("two",))]) as model:
        started = anyio.current_time()
        with anyio.move_on_after(0.5) as scope:

            async def cancel(_: Delta) -> None:
                scope.cancel()

            await model.respond(_asked(), cancel)
        if anyio.current_time() - started > 5:
            raise ContractBroken("a cancelled request must end at once; it took more than 5 s")
        if not scope.cancelled_caught:
            raise ContractBroken("a provider that hangs must not be answered for")
        turn = await model.respond(_asked(), _Heard())
    _equal("text", turn.text, "two")


@_contract
async def errors_of_the_listener_pass(harness: ModelHarness) -> None:
    """What `on_delta` raises comes out as it is, and the model can be asked again."""

    class Refused(LookupError):
        pass

    told: list[Delta] = []

    async def refuse(delta: Delta) -> None:
        told.append(delta)
        raise Refused

    async with harness.model([WireAnswer(text=("one ", "two")), WireAnswer(text=("three",))]) as model:
        try:
            await model.respond(_asked(), refuse)
        except Refused:
            turn = await model.respond(_asked(), _Heard())
        else:
            if told:
                raise ContractBroken("what on_delta raises must come out of respond; nothing did")
            raise Unsupported("this adapter gives no deltas")
    _equal("text", turn.text, "three")
