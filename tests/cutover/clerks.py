"""A chat model that tells, as real ones do, which tools it is offered, and that counts how often it is asked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from langchain_core.messages import AIMessage
from langchain_core.utils.function_calling import convert_to_openai_tool

from tests.cutover.agents_for_tests import RuleChat, Shop, asks, says


class Clerk(RuleChat):
    """Looks in the hall for each question, then says how many messages it was shown."""

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> Any:
        return self.bind(tools=[convert_to_openai_tool(tool) for tool in tools])


class Counted:
    """A clerk and a tool that count how often they are used."""

    def __init__(self) -> None:
        self.shop = Shop()
        self.requests = 0
        self.model = Clerk(rule=self._answer)

    def _answer(self, messages: Any) -> AIMessage:
        self.requests += 1
        return asks(("look", {"place": "hall"})) if messages[-1].type == "human" else says(f"{len(messages)} messages")

    @property
    def acts(self) -> int:
        """What was done for real so far."""
        return self.requests + len(self.shop.ran)
