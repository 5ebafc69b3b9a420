"""The public API as a typed program uses it: read by mypy and pyright (`make check`), never run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import TypeVar, assert_never

from typing_extensions import assert_type

import endstop
from endstop import (
    Agent,
    AgentResult,
    Budget,
    Decision,
    Delta,
    Effects,
    Ending,
    Event,
    Hold,
    ImagePart,
    LimitExceeded,
    LimitHit,
    MemoryEffects,
    Message,
    Model,
    ModelError,
    ModelRequest,
    ModelTurn,
    Pause,
    PlanLimits,
    PostModel,
    Price,
    Prices,
    Pricing,
    Retrieval,
    Retrieved,
    RetryPolicy,
    RunState,
    RunStream,
    Spent,
    TextPart,
    Tool,
    ToolContext,
    ToolReturn,
    Usage,
    UserMessage,
    dump_messages,
    load_messages,
    tool,
)
from endstop.models.scripted import ReplayModel, ScriptedModel

T = TypeVar("T")

names: list[str] = list(endstop.__all__)


@dataclass
class Report:
    """An output type."""

    title: str


@dataclass
class Shop:
    """What tools are given as `deps`."""

    open: bool


# -- seams: what a user writes fits the protocols --------------------------------------------------


class MyModel:
    """A model of one's own."""

    @property
    def name(self) -> str:
        return "mine"

    async def respond(self, request: ModelRequest, on_delta: Callable[[Delta], Awaitable[None]]) -> ModelTurn:
        assert_type(request.messages, Sequence[Message])
        await on_delta(Delta(text="Hello", kind="text"))
        return ModelTurn(text="Hello", usage=Usage(input_tokens=1, output_tokens=1))


class MyEffects:
    """A journal of one's own."""

    async def step(self, key: str, do: Callable[[], Awaitable[T]]) -> T:
        return await do()

    async def parallel(self, steps: Sequence[tuple[str, Callable[[], Awaitable[T]]]]) -> list[T]:
        return [await do() for _, do in steps]

    def now(self) -> datetime:
        return datetime.now(UTC)


class MyPrices:
    """A price table of one's own."""

    def price_of(self, model: str) -> Pricing | None:
        return Price(input_per_million=Decimal(1), output_per_million=Decimal(2)) if model == "mine" else None


class MyStages:
    """Both stages."""

    async def retrieve(self, prompt: str) -> Retrieved:
        return Retrieved(text=prompt, counts={"admitted": 1})

    async def apply(self, ops: Sequence[dict[str, endstop_json]]) -> None:
        return None


endstop_json = bool | int | float | str | list["endstop_json"] | dict[str, "endstop_json"] | None

models: list[Model] = [MyModel(), ScriptedModel(["Hello"]), ReplayModel([])]
effects: list[Effects] = [MyEffects(), MemoryEffects()]
prices: list[Prices] = [MyPrices(), endstop.GenaiPrices()]
