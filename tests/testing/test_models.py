"""The conformance kit of models: every adapter keeps every contract, and the kit sees one that does not."""

from __future__ import annotations

from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import anyio
import pytest
import trio
import trio.testing

from endstop._messages import (
    ModelTurn,
)
from endstop.models.base import Delta, Model, ModelRequest, OnDelta
from endstop.models.scripted import Step
from endstop.testing.models import (
    Contract,
    ContractBroken,
    ModelHarness,
    Unsupported,
    WireAnswer,
    check_model,
    model_contracts,
)
from tests.testing.model_harnesses import (
    FakeChat,
    LangChainHarness,
    OpenAIHarness,
    ReplayHarness,
    ScriptedHarness,
    StreamingFakeChat,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence

# Every adapter keeps every contract


HARNESSES: dict[str, ModelHarness] = {
    "scripted": ScriptedHarness(),
    "replay": ReplayHarness(),
    "langchain-streamed": LangChainHarness(StreamingFakeChat, stream=True),
    "langchain-whole": LangChainHarness(FakeChat, stream=True),
    "langchain-unstreamed": LangChainHarness(StreamingFakeChat, stream=False),
    "openai-streamed": OpenAIHarness(stream=True),
    "openai-whole": OpenAIHarness(stream=False),
}

SKIPPED = {
    "passing_failures_are_retryable": {"replay"},
    "final_failures_are_not_retryable": {"replay"},
    "the_wait_is_told": {"replay"},
    "an_overflow_is_told_apart": {"replay"},
    "an_answer_that_breaks_off_is_an_error": {"replay"},
    "a_failure_leaves_the_model_usable": {"replay"},
    "errors_of_the_listener_pass": {"langchain-whole", "langchain-unstreamed", "openai-whole"},
}
"""Contract -> the harnesses for which it has no meaning; every other must keep it."""


@pytest.mark.both_backends
@pytest.mark.parametrize("contract", model_contracts(), ids=str)
@pytest.mark.parametrize("adapter", ["scripted"])
async def test_an_adapter_on_anyio_keeps_them_on_both_event_loops(adapter: str, contract: Contract) -> None:
    """What stands on anyio behaves the same on trio; LangChain is asyncio's alone."""
    await contract.check(HARNESSES[adapter])


@pytest.mark.parametrize("contract", model_contracts(), ids=str)
@pytest.mark.parametrize("adapter", HARNESSES)
async def test_every_adapter_keeps_every_contract(adapter: str, contract: Contract) -> None:
    """Whatever the provider, the kernel meets the same model."""
    skipped = adapter in SKIPPED.get(contract.name, ())
    with pytest.raises(Unsupported) if skipped else no_error():
        await contract.check(HARNESSES[adapter])


@contextmanager
def no_error() -> Iterator[None]:
    """Nothing is expected to be raised."""
    yield


# The kit itself


class WrongModel:
    """A model that does one thing wrong; otherwise it answers as the one inside."""

    def __init__(self, inner: Model, wrong: str) -> None:
        self.inner, self.wrong = inner, wrong

    @property
    def name(self) -> str:
        """The name, unless that is what is wrong."""
        return "" if self.wrong == "name" else self.inner.name

    async def respond(self, request: ModelRequest, on_delta: OnDelta) -> ModelTurn:
        """Answers, with the mistake."""
        with anyio.CancelScope(shield=self.wrong == "cancellation"):
            turn = await self.inner.respond(self.of_request(request), self.of_listener(on_delta))
        match self.wrong, turn.tool_calls:
            case "text", _:
                return replace(turn, text=turn.text.strip())
            case "usage", _:
                return replace(turn, usage=turn.usage and replace(turn.usage, cached_input_tokens=0))
            case "reason", _:
                return replace(turn, finish_reason="stop")
            case "order", (_, _, *_):
                return replace(turn, tool_calls=turn.tool_calls[::-1])
            case "arguments", (call, *_) if call.invalid_arguments:
                return replace(turn, tool_calls=(replace(call, invalid_arguments=None),))
            case _:
                return turn

    def of_request(self, request: ModelRequest) -> ModelRequest:
        """The request, unless that is where the mistake is."""
        match self.wrong:
            case "history":
                return replace(request, messages=request.messages[-2:])
            case "tools":
                return replace(request, tools=())
            case "cap":
                return replace(request, max_output_tokens=None)
            case "schema":
                return replace(request, output_schema=None)
            case "instructions":
                return replace(request, instructions=None)
            case _:
                return request

    def of_listener(self, on_delta: OnDelta) -> OnDelta:
        """The listener, unless that is where the mistake is."""

        async def lossy(delta: Delta) -> None:
            if len(delta.text) > 4:
                await on_delta(delta)

        async def padded(delta: Delta) -> None:
            await on_delta(delta)
            await on_delta(Delta(text=""))

        async def mute(delta: Delta) -> None:
            with suppress(LookupError):
                await on_delta(delta)

        return {"deltas": lossy, "empty deltas": padded, "listener": mute}.get(self.wrong, on_delta)


class WrongHarness(ScriptedHarness):
    """A harness for a model that does one thing wrong."""

    def __init__(self, wrong: str) -> None:
        self.wrong = wrong

    @asynccontextmanager
    async def model(self, answers: Sequence[WireAnswer]) -> AsyncIterator[Model]:
        """The scripted model, with the mistake."""
        async with super().model(answers) as inner:
            yield WrongModel(inner, self.wrong)


@pytest.mark.parametrize(
    ("wrong", "broken"),
    [
        ("nothing", set()),
        ("name", {"text_is_answered"}),
        ("text", {"deltas_are_the_text", "huge_texts_survive"}),
        ("usage", {"usage_is_reported"}),
        (
            "reason",
            {"a_call_is_read", "a_cut_call_is_not_completed", "the_reason_of_the_end_is_told", "a_refusal_is_told"},
        ),
        ("order", {"calls_keep_their_order"}),
        ("arguments", {"broken_arguments_are_kept_and_never_sent", "a_cut_call_is_not_completed"}),
        ("deltas", {"deltas_are_the_text", "concurrent_requests_do_not_mix"}),
        ("empty deltas", {"deltas_are_the_text"}),
        ("listener", {"errors_of_the_listener_pass"}),
        ("tools", {"tools_are_described"}),
        ("cap", {"the_output_cap_is_sent"}),
        ("schema", {"structured_output_is_asked_for"}),
        ("instructions", {"the_history_is_sent_in_order"}),
    ],
)
async def test_a_mistake_breaks_its_contract(wrong: str, broken: set[str]) -> None:
    """The kit names the contracts that a faulty adapter breaks, and none where there is no fault."""
    results = await check_model(WrongHarness(wrong))
    assert broken <= {result.contract.name for result in results if result.status == "broken"}
    assert broken or all(result.status == "held" for result in results)


def test_a_late_end_of_a_cancelled_request_is_found() -> None:
    """A model that answers an hour after it was cancelled does not end at once; the clock jumps over the hour."""
    clock = trio.testing.MockClock(autojump_threshold=0)
    check = next(contract.check for contract in model_contracts() if contract.name == "cancellation_is_prompt")
    with pytest.raises(ContractBroken, match="must end at once"):
        trio.run(check, WrongHarness("cancellation"), clock=clock)


async def test_a_result_is_one_line() -> None:
    """Each result says what was tried, how it went and, where it did not hold, why."""
    held, *_ = await check_model(ScriptedHarness())
    rule = "An answer's text arrives whole, from a model that has a name, and ends in `stop`."
    assert str(held) == f"held    01-text_is_answered: {rule}"
    broken, *_ = await check_model(WrongHarness("name"))
    assert str(broken) == f"broken  01-text_is_answered: {rule} (the model must have a name)"
    skipped = {result.detail for result in await check_model(ReplayHarness()) if result.status == "skipped"}
    assert skipped == {"failures are not recorded"}


class BrokenHarness(ScriptedHarness):
    """A harness that has a fault of its own."""

    @asynccontextmanager
    async def model(self, answers: Sequence[WireAnswer]) -> AsyncIterator[Model]:
        """No model."""
        raise LookupError("no model")
        yield


class SlowHarness(ScriptedHarness):
    """A harness for a model that never answers."""

    def step(self, answer: WireAnswer) -> Step:
        """A step that never ends."""
        return Step(latency_seconds=3600)


async def test_every_contract_is_tried() -> None:
    """An adapter that raises anything, or never answers, breaks each contract in turn."""
    raised = await check_model(BrokenHarness())
    assert {(each.status, each.detail) for each in raised} == {("broken", "LookupError('no model')")}
    slow = await check_model(SlowHarness(), contract_seconds=0.001)
    assert {(each.status, each.detail) for each in slow} == {("broken", "TimeoutError()")}
    assert len(raised) == len(slow) == len(model_contracts())


class Undoing(ScriptedHarness):
    """A harness whose model undoes the failures of its provider, or answers for one that hangs."""

    def step(self, answer: WireAnswer) -> Step:
        """The answer without what is wrong with it."""
        return super().step(replace(answer, failure=None, hangs=False))


async def test_a_model_that_hides_failures_is_found() -> None:
    """Half an answer passed off as a whole one, and a hanging provider answered for, are broken contracts."""
    broken = {result.contract.name for result in await check_model(Undoing()) if result.status == "broken"}
    assert broken == {
        "passing_failures_are_retryable",
        "final_failures_are_not_retryable",
        "the_wait_is_told",
        "an_overflow_is_told_apart",
        "an_answer_that_breaks_off_is_an_error",
        "a_failure_leaves_the_model_usable",
        "cancellation_is_prompt",
    }


class Forgetful(ScriptedHarness):
    """A harness for a provider that saw no request."""

    def requests(self) -> Sequence[ModelRequest]:
        """Nothing."""
        return []


async def test_a_request_that_was_not_sent_is_found() -> None:
    """A contract on what is sent does not hold where nothing was."""
    details = {result.detail for result in await check_model(Forgetful()) if result.status == "broken"}
    assert "the provider must get 1 requests; it got 0" in details
