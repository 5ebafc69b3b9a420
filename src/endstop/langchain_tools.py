"""Any LangChain tool as an endstop tool.

::

    agent = Agent(model, tools=[from_langchain(TavilySearch(max_results=3), read_only=True)])

Stands on langchain-core alone. LangChain runs on asyncio, and so does this adapter.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from langchain_core.messages import ToolCall, ToolMessage
from langchain_core.tools import Tool as TextTool
from langchain_core.utils.function_calling import convert_to_openai_tool
from pydantic import BaseModel, ValidationError

from endstop._errors import ConfigError
from endstop._messages import JsonObject, ToolSpec
from endstop._tools import Arguments, CheckArguments, Tool, ToolBody, ToolContext

if TYPE_CHECKING:
    from langchain_core.tools import BaseTool

NOT_INJECTED = frozenset({"tool_call_id", "config", "run_manager", "callbacks", "args", "kwargs"})
"""Arguments that are hidden from the model and that LangChain itself has values for, outside a graph too."""


class LangChainToolError(Exception):
    """A LangChain tool answered with an error message in place of raising; the model reads it."""


def from_langchain(langchain_tool: BaseTool, *, read_only: bool = False, requires_approval: bool = False) -> Tool:
    """A tool that runs a LangChain one; `dataclasses.replace` sets its other options.

    The model sees the same name, description and schema. An answer of content blocks is shown as its text
    where it has any, else as JSON; an artifact is not shown. Callbacks and tracing of LangChain work as
    ever. `return_direct` means nothing here: the model reads the result and answers.

    Raises:
        ConfigError: the tool takes an argument that only a LangGraph graph can inject (state, store, runtime).
    """
    injected = _injected(langchain_tool)
    if injected:
        remedy = (
            f"a graph injects {', '.join(injected)}; give the kernel a tool that takes a ToolContext in their place"
        )
        raise ConfigError(f"tool {langchain_tool.name!r}", langchain_tool, remedy)
    function: JsonObject = convert_to_openai_tool(langchain_tool)["function"]
    description, parameters = function.get("description"), function.get("parameters")
    return Tool(
        spec=ToolSpec(
            name=langchain_tool.name,
            description=description if isinstance(description, str) else "",
            parameters=parameters if isinstance(parameters, dict) else {"type": "object", "properties": {}},
        ),
        body=_body(langchain_tool),
        check=_check(langchain_tool),
        read_only=read_only,
        requires_approval=requires_approval,
    )


def _injected(langchain_tool: BaseTool) -> list[str]:
    """The arguments that the model does not give and a call outside a graph has no value for."""
    takes, shown = _model(langchain_tool.get_input_schema()), _model(langchain_tool.tool_call_schema)
    if takes is None or shown is None:
        return []
    return sorted(set(takes.model_fields) - set(shown.model_fields) - NOT_INJECTED)


def _check(langchain_tool: BaseTool) -> CheckArguments:
    # A tool of one text takes it under a name that its own schema does not know.
    schema = None if isinstance(langchain_tool, TextTool) else _model(langchain_tool.tool_call_schema)

    def check(arguments: JsonObject) -> Arguments:
        """The arguments as the model gave them, where they fit: the tool makes its own types of them."""
        if schema is not None:
            try:
                schema.model_validate(arguments)
            except ValidationError as error:
                raise ValueError(f"The arguments do not fit: {error}") from error
        return copy.deepcopy(arguments)

    return check


def _model(schema: object) -> type[BaseModel] | None:
    """A schema that can check arguments here; those of JSON and of the old pydantic are left to the tool."""
    return schema if isinstance(schema, type) and issubclass(schema, BaseModel) else None


def _body(langchain_tool: BaseTool) -> ToolBody:
    async def body(arguments: Arguments, context: ToolContext[Any]) -> object:
        call = ToolCall(name=langchain_tool.name, args=arguments, id=context.call_id, type="tool_call")
        return _shown(await langchain_tool.ainvoke(call))

    return body


def _shown(answer: object) -> object:
    """What a tool answered, as the kernel renders it.

    Raises:
        LangChainToolError: it is an error message.
    """
    if not isinstance(answer, ToolMessage):
        # A Command, say: there is no graph here that could follow it.
        raise LangChainToolError(f"it was run, but answered with a {type(answer).__name__}, which only a graph can use")
    shown = answer.text or answer.content
    if answer.status == "error":
        raise LangChainToolError(str(shown))
    return shown
