"""The smallest agent: a model, a tool, and limits that hold.

Run it as a program, or on the command line: `endstop run examples/quickstart.py:agent "How warm will it be in Oslo?"`
"""

from endstop import Agent, PlanLimits
from endstop.models.scripted import ScriptedModel, call, turn


async def weather(city: str) -> str:
    """Forecast tomorrow's weather in a city."""
    return f"{city}: 21 degrees, light wind"


# A scripted model answers here, so that the example runs anywhere. A real one takes its place:
# OpenAIModel("gpt-4o-mini"), or OpenAIModel("qwen2.5", base_url="http://localhost:8080/v1").
model = ScriptedModel([turn(calls=[call("weather", {"city": "Oslo"})]), "It will be 21 degrees in Oslo."])

agent = Agent(
    model,
    tools=[weather],
    instructions="Answer in one sentence.",
    limits=PlanLimits(max_model_rounds=5, max_tool_calls=10, max_seconds=60),
)

if __name__ == "__main__":
    result = agent.run_sync("How warm will it be in Oslo?")
    print(result)
    print(f"{result.stop_reason} after {result.spent.model_rounds} rounds and {result.spent.tool_calls} tool call")
