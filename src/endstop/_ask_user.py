"""The built-in tool by which a model asks its user."""

from __future__ import annotations

from endstop._errors import Interrupt
from endstop._messages import JsonObject, JsonValue
from endstop._tools import ToolContext, tool


@tool(read_only=True)
async def ask_user(question: str, context: ToolContext, schema: JsonObject | None = None) -> JsonValue:
    """Ask the user a question and wait for the answer. With a JSON schema the answer has that form."""
    if context.answers:
        return context.answers[0]
    raise Interrupt(question, schema=schema, asks_user=True)
