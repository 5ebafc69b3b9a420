"""endstop: with everything on, and as it comes."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal

from benchmarks.task import ANSWER, PIECE, PROMPT, TOOL, Job, arguments, call_id, search, tokens
from endstop import Agent, Model, ModelRequest, ModelTurn, PlanLimits, Price, TextDelta, ToolCall, Usage, tool
from endstop.models.openai import OpenAIModel
from endstop.models.scripted import ScriptedModel, Step, forever

MANY = 1_000_000
SPEC = tool(search).spec

EVERY_LIMIT = PlanLimits(
    max_model_rounds=MANY,
    max_model_calls=MANY,
    max_tool_calls=MANY,
    tool_limits={TOOL: MANY},
    max_tokens=1_000 * MANY,
    max_output_tokens=100 * MANY,
    max_cost=Decimal(MANY),
    max_seconds=86_400,
    deadline=datetime.now(UTC) + timedelta(days=1),
)


class FlatPrices:
    """The same price for every model."""

    _price = Price(input_per_million=Decimal("0.15"), output_per_million=Decimal("0.60"))

    def price_of(self, model: str) -> Price:
        """The price."""
        return self._price


def turns(count: int) -> list[ModelTurn]:
    """What the model says in a run of so many rounds."""
    usages = [Usage(input_tokens=tokens(number)[0], output_tokens=tokens(number)[1]) for number in range(count)]
    asking = [
        ModelTurn(
            tool_calls=(ToolCall(call_id=call_id(number), name=TOOL, arguments=arguments(number)),),
            finish_reason="tool_calls",
            usage=usages[number],
        )
        for number in range(count - 1)
    ]
    return [*asking, ModelTurn(text=ANSWER, usage=usages[-1])]


def scripted(count: int, *, latency_seconds: float = 0.0) -> ScriptedModel:
    """A model that asks for a tool and answers in the last of so many rounds, in any number of runs at once."""
    script = turns(count)

    def step(request: ModelRequest) -> ModelTurn:
        return script[len(request.messages) // 2]

    return ScriptedModel([forever(step)], latency_seconds=latency_seconds, record=False)


def streaming(count: int) -> ScriptedModel:
    """A model that answers in so many pieces."""
    usage = Usage(input_tokens=120, output_tokens=count)
    return ScriptedModel([forever(Step(deltas=(PIECE,) * count, usage=usage))], record=False)


def rounds(count: int, *, latency_seconds: float = 0.0) -> Job:
    """A run of so many rounds with every limit set, its events consumed."""
    return _streamed(scripted(count, latency_seconds=latency_seconds))


def plain_rounds(count: int, *, latency_seconds: float = 0.0) -> Job:
    """A run of so many rounds with the limit on rounds alone, awaited."""
    model = scripted(count, latency_seconds=latency_seconds)
    agent = Agent(model, tools=[search], limits=PlanLimits(max_model_rounds=MANY))

    async def job() -> int:
        result = await agent.run(PROMPT)
        return result.spent.model_rounds

    return job


def deltas(count: int) -> Job:
    """An answer in so many pieces with every limit set, its events consumed."""
    return _streamed_text(streaming(count))


def http_rounds(base_url: str, count: int) -> Job:
    """A run of so many rounds over HTTP, streamed, with every limit set."""
    return _streamed(OpenAIModel(f"rounds-{count}", base_url=base_url))


def whole_http_rounds(base_url: str, count: int) -> Job:
    """A run of so many rounds over HTTP, each answer in one piece, with every limit set."""
    return _streamed(OpenAIModel(f"rounds-{count}", base_url=base_url, stream=False))


def http_deltas(base_url: str, model: str) -> Job:
    """An answer in many pieces over HTTP with every limit set, its events consumed."""
    return _streamed_text(OpenAIModel(model, base_url=base_url))


def _agent(model: Model, tools: tuple[Callable[..., object], ...] = (search,)) -> Agent:
    return Agent(model, tools=tools, limits=EVERY_LIMIT, prices=FlatPrices())


def _streamed(model: Model) -> Job:
    agent = _agent(model)

    async def job() -> int:
        async with agent.stream(PROMPT) as run:
            async for _ in run:
                pass
        return run.result.spent.model_rounds

    return job


def _streamed_text(model: Model) -> Job:
    agent = _agent(model, tools=())

    async def job() -> int:
        pieces = 0
        async with agent.stream(PROMPT) as run:
            async for event in run:
                if isinstance(event, TextDelta):
                    pieces += 1
        return pieces

    return job
