"""Tools: sync and async, in parallel, with a context, a time limit and retries, and errors that the model reads."""

import time
from dataclasses import dataclass

from endstop import Agent, ToolContext, tool
from endstop.models.scripted import ScriptedModel, call, turn


@dataclass(frozen=True)
class Shop:
    """What the tools work on; each run is given its own as `deps`."""

    prices: dict[str, float]


@tool(read_only=True)
async def price(article: str, context: ToolContext[Shop]) -> float:
    """Tell the price of an article, in euros."""
    if article not in context.deps.prices:
        raise LookupError(f"there is no {article!r}; there are {', '.join(context.deps.prices)}")
    return context.deps.prices[article]


@tool(timeout_seconds=5, retries=1)
def order(article: str, pieces: int = 1) -> dict[str, str | int]:
    """Order an article. A sync tool runs in a thread of its own, so it may block."""
    time.sleep(0.01)
    return {"article": article, "pieces": pieces, "number": 4711}


model = ScriptedModel(
    [
        # Calls of one turn run at once; whatever goes wrong in one comes back to the model as its result.
        turn(
            calls=[call("price", {"article": "lamp"}), call("price", {"article": "sofa"}), call("order", {"pieces": 2})]
        ),
        turn(calls=[call("order", {"article": "lamp", "pieces": 2})]),
        "Two lamps are ordered, 40 euros each. There is no sofa.",
    ]
)
agent = Agent(model, tools=[price, order], name="clerk")

if __name__ == "__main__":
    result = agent.run_sync("Two lamps and a sofa, please.", deps=Shop(prices={"lamp": 40.0, "chair": 75.0}))
    for message in result.messages:
        if message.kind == "tool":
            print(f"{message.name}: {message.status}: {message.content}")
    print(result)
    print(f"executions: {dict(result.spent.tools)}")
