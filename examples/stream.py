"""The events of a run, as they happen; and a run that its reader leaves early."""

import anyio

from endstop import Agent, TextDelta, ToolResultEvent, UsageEvent, tool
from endstop.models.scripted import ScriptedModel, call, turn


@tool(read_only=True)
async def search(query: str) -> str:
    """Search the archive."""
    return f"Three pages about {query}."


steps = [turn(calls=[call("search", {"query": "endstops"})]), "An endstop is a switch. It stops the axis of a machine."]
agent = Agent(ScriptedModel(steps, stream=True), tools=[search])


async def watch() -> None:
    """Print what happens."""
    async with agent.stream("What is an endstop?") as run:
        async for event in run:
            match event:
                case ToolResultEvent():
                    print(f"[{event.call.name}: {event.result.content}]")
                case TextDelta():
                    print(event.text, end="")
                case UsageEvent():
                    print(f"[{event.remaining['max_model_rounds']} rounds are left]")
                case _:
                    pass
    print(run.result.stop_reason)


async def leave_early() -> None:
    """Stop reading at the first word: the run is cancelled, and what it did is kept."""
    impatient = Agent(ScriptedModel(steps, stream=True), tools=[search])
    async with impatient.stream("What is an endstop?") as run:
        async for event in run:
            if isinstance(event, TextDelta):
                break
    print(f"left early; the history has {len(run.state.messages)} messages and can be gone on with")


if __name__ == "__main__":
    anyio.run(watch)
    anyio.run(leave_early)
