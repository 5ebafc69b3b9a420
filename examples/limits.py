"""A model that never comes to an end, and the three ways in which a limit ends it."""

from dataclasses import replace

from endstop import Agent, LimitExceeded, PlanLimits, tool
from endstop.models.base import ModelRequest
from endstop.models.scripted import ScriptedModel, ScriptStep, call, forever, turn


@tool(read_only=True)
async def search(query: str) -> str:
    """Search the archive."""
    return f"Page 1 of 900 about {query}."


def eager(request: ModelRequest) -> ScriptStep:
    """Ask for another search, whatever is known; answer only where nothing else is allowed."""
    if request.final:
        return "The archive has 900 pages about endstops; I have read three of them."
    return turn("I should look further.", calls=[call("search", {"query": f"endstops {len(request.messages)}"})])


agent = Agent(ScriptedModel([forever(eager)]), tools=[search], limits=PlanLimits(max_model_rounds=4))

if __name__ == "__main__":
    # The default: the last of the four rounds is kept for an answer without tools, and the result is marked.
    result = agent.run_sync("Tell me all about endstops.")
    print(result)
    assert result.truncated
    assert result.ending is not None
    print(f"limit: {result.ending.limit}, used {result.ending.used} of {result.ending.allowed}\n")

    # Without a reserve every round is an ordinary one, and the best text at hand is the result.
    stopping = replace(agent.limits, on_limit="stop")
    print(agent.run_sync("Tell me all about endstops.", limits=stopping), "\n")

    # As an error, which carries the whole partial result.
    raising = replace(agent.limits, max_tool_calls=1, on_limit="raise")
    try:
        agent.run_sync("Tell me all about endstops.", limits=raising)
    except LimitExceeded as error:
        print(f"{error.code}: {error}; spent {error.result.spent.model_rounds} rounds")
