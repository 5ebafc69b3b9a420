"""A run that a limit ended is stored, and goes on later with more: nothing is asked or done twice."""

import tempfile
from pathlib import Path

import anyio

from endstop import Agent, AgentResult, PlanLimits, ResumeError, tool
from endstop.models.scripted import ScriptedModel, call, turn


@tool(read_only=True)
async def read(page: int) -> str:
    """Read a page of the report."""
    return f"Page {page} says that the axis was stopped {page} times."


steps = [
    turn(calls=[call("read", {"page": 1})]),
    "Only the first page is read so far: one stop.",
    turn(calls=[call("read", {"page": 2})]),
    "Two pages are read: three stops in all.",
]
agent = Agent(ScriptedModel(steps), tools=[read], limits=PlanLimits(max_model_rounds=2))


async def main() -> None:
    """Run out of rounds, store the result, and go on from the file."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "run.json"
        result = await agent.run("How often was the axis stopped?")
        file.write_text(result.to_json(), encoding="utf-8")

        # Later, perhaps in another process:
        result = AgentResult.from_json(file.read_bytes())
        print(result)
        try:
            await agent.resume(result)
        except ResumeError as error:
            print(f"\n{error.code}: {error}\n")
        result = await agent.resume(result, limits=PlanLimits(max_model_rounds=4))
        print(result)
        print(f"{result.spent.model_rounds} rounds, {result.spent.tool_calls} tool calls in all")


if __name__ == "__main__":
    anyio.run(main)
