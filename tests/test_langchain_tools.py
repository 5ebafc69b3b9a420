"""LangChain tools run in the kernel as they run in LangChain."""

from __future__ import annotations

from typing import Annotated, Any

import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool, InjectedToolArg, InjectedToolCallId, StructuredTool, ToolException, tool
from langchain_core.tools import Tool as TextTool
from langgraph.prebuilt import InjectedState
from langgraph.types import Command

from endstop import Agent, AgentResult, ConfigError, PlanLimits
from endstop.langchain_tools import from_langchain
from endstop.models.scripted import ScriptedModel, call, turn


@tool
def weather(city: str, days: Annotated[int, "how many days"] = 1) -> str:
    """Tell the weather."""
    return f"{city}: rain for {days} days"


@tool
async def whoami(tool_call_id: Annotated[str, InjectedToolCallId]) -> str:
    """Tell the id of the call."""
    return tool_call_id


class Sum(BaseTool):
    """A tool written as a class, without a schema of its own."""

    name: str = "sum"
    description: str = "Add."

    def _run(self, numbers: list[int]) -> int:
        return sum(numbers)


def run_one(given: Any, arguments: dict[str, Any], **limits: Any) -> AgentResult:
    """An agent calls the tool once and answers."""
    model = ScriptedModel([turn(calls=[call(given.name, arguments)]), "done"])
    return Agent(model, tools=[given], limits=PlanLimits(**limits)).run_sync("go")


def returned(given: Any, arguments: dict[str, Any]) -> tuple[str, str]:
    """The status and the content of the return of one call."""
    back = run_one(from_langchain(given), arguments).messages[2]
    return back.status, back.content


def test_the_model_sees_the_name_the_description_and_the_schema() -> None:
    """They are what LangChain itself sends to a provider."""
    spec = from_langchain(weather).spec
    assert (spec.name, spec.description) == ("weather", "Tell the weather.")
    assert spec.parameters["required"] == ["city"]
    assert spec.parameters["properties"]["days"] == {"default": 1, "description": "how many days", "type": "integer"}


def test_a_call_runs_the_tool() -> None:
    """Defaults of the function hold; sync and async tools run alike."""
    assert returned(weather, {"city": "Oslo"}) == ("ok", "Oslo: rain for 1 days")
    assert returned(weather, {"city": "Oslo", "days": 3}) == ("ok", "Oslo: rain for 3 days")
    assert returned(Sum(), {"numbers": [1, 2]}) == ("ok", "3")


def test_a_tool_that_asks_for_the_id_of_its_call_gets_it() -> None:
    """It is hidden from the model, and known without a graph."""
    assert "tool_call_id" not in from_langchain(whoami).spec.parameters["properties"]
    result = run_one(from_langchain(whoami), {})
    assert result.messages[2].content == result.messages[1].tool_calls[0].call_id


def test_old_text_tools_and_tools_with_a_json_schema_work() -> None:
    """The first take one string; the second say what they take in JSON, and check nothing themselves."""
    text_tool = TextTool(name="echo", description="Echo.", func=lambda said: f"<{said}>")
    assert returned(text_tool, {"__arg1": "hello"}) == ("ok", "<hello>")
    schema = {"type": "object", "properties": {"q": {"type": "string"}}}
    json_tool = StructuredTool(name="find", description="Find.", args_schema=schema, func=lambda q: f"found {q}")
    assert from_langchain(json_tool).spec.parameters == schema
    assert returned(json_tool, {"q": "key"}) == ("ok", "found key")


def test_arguments_that_do_not_fit_are_refused_before_the_call_is_paid() -> None:
    """The model reads what is wrong, and no tool call is counted."""
    result = run_one(from_langchain(weather), {"days": 2})
    assert result.messages[2].status == "error"
    assert "city" in result.messages[2].content
    assert result.spent.tool_calls == 0


def test_an_error_of_the_tool_goes_back_to_the_model() -> None:
    """Raised, or answered as an error message by the tool's own handler."""

    @tool
    def broken(x: int) -> str:
        """Break."""
        raise ToolException(f"no {x}")

    assert returned(broken, {"x": 1}) == ("error", "ToolException: no 1")
    handled = broken.model_copy(update={"handle_tool_error": True})
    assert returned(handled, {"x": 1}) == ("error", "LangChainToolError: no 1")


def test_an_artifact_is_kept_from_the_model_and_blocks_are_shown_as_text() -> None:
    """The content alone is the tool's answer."""

    @tool(response_format="content_and_artifact")
    def chart(x: int) -> tuple[str, object]:
        """Draw."""
        return f"a chart of {x}", object()

    @tool
    def blocks(x: int) -> list[dict[str, str]]:
        """Answer in blocks."""
        return [{"type": "text", "text": f"block {x}"}]

    assert returned(chart, {"x": 4}) == ("ok", "a chart of 4")
    assert returned(blocks, {"x": 4}) == ("ok", "block 4")


def test_a_tool_that_answers_with_a_command_is_told_that_nobody_can_follow_it() -> None:
    """It has run; to hide that it did would be worse than the error."""

    @tool
    def hand_over(tool_call_id: Annotated[str, InjectedToolCallId]) -> Command[str]:
        """Hand over."""
        return Command(goto="other")

    status, content = returned(hand_over, {})
    assert status == "error"
    assert "answered with a Command, which only a graph can use" in content


@pytest.mark.parametrize("injection", [InjectedState, InjectedToolArg])
def test_a_tool_that_needs_a_graph_is_refused_by_name(injection: type) -> None:
    """The error says which argument, and what to do."""

    def look(query: str, state: Annotated[dict, injection]) -> str:
        """Look."""
        return query

    # Resolved here: LangChain looks annotations up in the module.
    look.__annotations__ = {"query": str, "state": Annotated[dict, injection], "return": str}
    with pytest.raises(ConfigError, match=r"tool 'look'.*a graph injects state; give the kernel a tool that takes a"):
        from_langchain(tool(look))


def test_its_config_and_callbacks_work_as_in_langchain() -> None:
    """A tool's own callbacks see the call."""
    seen: list[str] = []

    class Handler(BaseCallbackHandler):
        def on_tool_start(self, serialized: Any, input_str: str, **kwargs: Any) -> None:
            seen.append(input_str)

    @tool
    def with_config(x: int, config: RunnableConfig) -> str:
        """Read the config."""
        return f"{x} {sorted(config['configurable'])}"

    given = with_config.model_copy(update={"callbacks": [Handler()]})
    assert returned(given, {"x": 1}) == ("ok", "1 []")
    assert seen == ["{'x': 1}"]


def test_limits_and_approval_hold_as_for_any_tool() -> None:
    """A call that is not paid is not run; one that needs a person waits."""
    assert run_one(from_langchain(weather), {"city": "Oslo"}, max_tool_calls=0).ending.limit == "max_tool_calls"
    paused = run_one(from_langchain(weather, requires_approval=True), {"city": "Oslo"})
    assert paused.stop_reason == "paused"
    assert from_langchain(weather, read_only=True).read_only
