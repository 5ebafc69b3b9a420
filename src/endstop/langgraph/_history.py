"""Lists of LangChain messages as an ending needs them: every call answered, and read in the kernel's terms.

A provider takes a history only where each tool call of an `AIMessage` is answered exactly once, directly after it.
All functions here are pure: they return new lists and leave the messages that they are given as they are.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage

from endstop._messages import FilePart, Message, ModelTurn, TextPart, ToolCall, ToolReturn, UserMessage, clean_text
from endstop._results import FINAL_NOTICE, limits_notice, loop_notice
from endstop.models._langchain_codec import as_json, at, read_calls, read_finish_reason, read_usage

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from endstop._limits import LimitHit
    from endstop._messages import JsonObject, Part

CUT_CALLS = "the model's answers were cut at its output cap, so that their tool calls are not whole"
"""What is added to the reason of a loop whose newest answer was cut."""

_AT_END = re.compile(r"\n\n\[endstop: .*\]\Z", re.DOTALL)
"""What `at_end` adds: it is the model's to read, and no part of what was found."""

MARK = "endstop"
"""The key of `response_metadata` under which a message says how a run ended, or that a call was not run."""


def unanswered(messages: Sequence[BaseMessage]) -> tuple[ToolCall, ...]:
    """The tool calls that no `ToolMessage` answers, oldest first, those with broken arguments included."""
    return tuple(call for turn in _turns(messages) for call in turn.missing)


def answers(
    messages: Sequence[BaseMessage], why: str, known: Mapping[str, ToolMessage] | None = None
) -> list[ToolMessage]:
    """What answers the calls of the newest `AIMessage` that nothing answers yet, in the order asked.

    `known` are results by call id that are not in the list yet; every other call was not run, and is told `why`.
    """
    turns = list(_turns(messages))
    return turns[-1].answers(why, known or {}) if turns else []


def repaired(
    messages: Sequence[BaseMessage], why: str, known: Mapping[str, ToolMessage] | None = None
) -> list[BaseMessage]:
    """The list with every call answered exactly once, directly after the message that asks for it.

    `known` and `why` are as for `answers`. An answer that stands later is moved up; one that answers no call, or
    answers it a second time, is left out. All else keeps its order. A valid list comes back equal.
    """
    turns = iter(_turns(messages))
    valid: list[BaseMessage] = []
    for message in messages:
        if isinstance(message, ToolMessage):
            continue  # It comes with the message that it answers.
        valid.append(message)
        if isinstance(message, AIMessage):
            turn = next(turns)
            valid += turn.answered
            valid += turn.answers(why, known or {})
    return valid


def not_run(call_id: str, name: str, why: str) -> ToolMessage:
    """The answer to a call that was not run."""
    return _unrun(call_id, name, f"Not run: {why}")


def stopped(call_id: str, name: str, why: str) -> ToolMessage:
    """The answer to a call that was not run to its end."""
    return _unrun(call_id, name, f"Stopped before it was done, it may have had an effect: {why}")


def _unrun(call_id: str, name: str, text: str) -> ToolMessage:
    return ToolMessage(
        text,
        tool_call_id=call_id,
        name=name,
        status="error",
        response_metadata={MARK: {"status": "not_run"}},
    )


def final_notice() -> HumanMessage:
    """What asks the model for its last answer, without tools."""
    return HumanMessage(FINAL_NOTICE)


def nudge(reason: str) -> HumanMessage:
    """What tells the model that it is in a loop."""
    return HumanMessage(loop_notice(reason))


def near_limits(hits: Sequence[LimitHit]) -> HumanMessage:
    """What tells the model that limits are nearly used up."""
    return HumanMessage(limits_notice(hits))


def at_end(notice: HumanMessage) -> str:
    """A notice to the model as it stands at the end of a tool's result."""
    return f"\n\n[endstop: {notice.text}]"


def marked(message: AIMessage, ending: JsonObject) -> AIMessage:
    """The message with the ending of its run in its `response_metadata`."""
    return message.model_copy(update={"response_metadata": {**message.response_metadata, MARK: ending}})


def was_cut(message: AIMessage) -> bool:
    """Whether an answer ended at the model's output cap, so that what it asks for may not be whole."""
    return read_finish_reason(as_json(message.response_metadata), True) == "length"


def kernel_messages(messages: Iterable[BaseMessage]) -> list[Message]:
    """The messages in the kernel's terms, for its estimates and digests; what they cannot hold is left out."""
    return [_kernel_message(index, message) for index, message in enumerate(messages)]


class _Turn:
    """An `AIMessage` that asks for calls, with the messages that answer them in the order in which they came."""

    __slots__ = ("_message", "answered", "ids")

    def __init__(self, message: AIMessage) -> None:
        self._message = message
        asked = (call["id"] for call in (*message.tool_calls, *message.invalid_tool_calls))
        # A call without an id is nobody's to answer.
        self.ids = [call_id for call_id in dict.fromkeys(asked) if call_id]
        self.answered: list[ToolMessage] = []

    @property
    def missing(self) -> list[ToolCall]:
        if len(self.answered) == len(self.ids):
            return []
        missing = set(self.ids).difference(message.tool_call_id for message in self.answered)
        return [call for call in read_calls(self._message, "") if call.call_id in missing]

    def answers(self, why: str, known: Mapping[str, ToolMessage]) -> list[ToolMessage]:
        return [known.get(call.call_id) or not_run(call.call_id, call.name, why) for call in self.missing]


def _turns(messages: Sequence[BaseMessage]) -> Iterator[_Turn]:
    """One for each `AIMessage`. An answer belongs to the newest message before it that asks for it."""
    turns: list[_Turn] = []
    asking: dict[str, _Turn] = {}
    for message in messages:
        if isinstance(message, AIMessage):
            turn = _Turn(message)
            turns.append(turn)
            asking.update(dict.fromkeys(turn.ids, turn))
        elif isinstance(message, ToolMessage) and message.tool_call_id in asking:
            asking.pop(message.tool_call_id).answered.append(message)
    return iter(turns)


def _kernel_message(index: int, message: BaseMessage) -> Message:
    if isinstance(message, AIMessage):
        return ModelTurn(
            text=clean_text(str(message.text)),
            tool_calls=read_calls(message, f"call_{index}") if message.tool_calls or message.invalid_tool_calls else (),
            usage=read_usage(as_json(message.usage_metadata)) if message.usage_metadata else None,
        )
    if isinstance(message, ToolMessage):
        skipped = at(as_json(message.response_metadata.get(MARK)), "status") == "not_run"
        return ToolReturn(
            call_id=message.tool_call_id,
            name=message.name or "",
            content=_AT_END.sub("", clean_text(str(message.text))),
            status="not_run" if skipped else "ok" if message.status == "success" else "error",
        )
    return UserMessage(content=_content(message))


def _content(message: BaseMessage) -> str | tuple[Part, ...]:
    if isinstance(message.content, str):
        return clean_text(message.content)
    return tuple(_part(block) for block in message.content)


def _part(block: str | dict[str, object]) -> Part:
    """A block of content; what is no text only counts, so that nothing of it is kept but its kind."""
    text = block if isinstance(block, str) else block.get("text")
    if isinstance(text, str):
        return TextPart(text=clean_text(text))
    return FilePart(name=str(block.get("type", "file")) if isinstance(block, dict) else "file", url="")
