"""Eight runs at once on one budget: together they never spend more than it allows."""

import time

import anyio

from endstop import Agent, AgentResult, Budget, PlanLimits, tool
from endstop.models.scripted import ScriptedModel, call, forever, turn


@tool(read_only=True)
async def search(query: str) -> str:
    """Search the archive."""
    await anyio.sleep(0.001)
    return f"A page about {query}."


def researcher(topic: str) -> Agent[str]:
    """An agent that would go on searching as long as it is let."""
    steps = forever(
        lambda request: (
            f"What I found about {topic}."
            if request.final
            else turn(calls=[call("search", {"query": f"{topic} {len(request.messages)}"})])
        )
    )
    return Agent(ScriptedModel([steps], latency_seconds=0.001), tools=[search], name=topic)


async def main() -> None:
    """Run them all, and print what each came to and what they spent together."""
    shared = Budget(PlanLimits(max_model_rounds=None, max_model_calls=24, max_tool_calls=20))
    results: list[AgentResult[str]] = []

    async def research(topic: str) -> None:
        results.append(await researcher(topic).run(f"Find out about {topic}.", budget=shared))

    async with anyio.create_task_group() as group:
        for topic in ("axes", "rails", "motors", "belts", "screws", "switches", "sensors", "cables"):
            group.start_soon(research, topic)

    for result in sorted(results, key=lambda each: each.state.agent):
        print(f"{result.state.agent}: {result}")
    spent = shared.spent(time.monotonic())
    print(f"{spent.model_calls} of 24 model calls and {spent.tool_calls} of 20 tool calls")


if __name__ == "__main__":
    anyio.run(main)
