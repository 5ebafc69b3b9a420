"""A recorded turn played back: a model that answers, and tools that return, what the tape holds."""

from __future__ import annotations

import sys
import threading
from contextvars import ContextVar
from types import new_class
from typing import TYPE_CHECKING, Any, Literal

from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_openai_tool
from langgraph.errors import GraphInterrupt
from langgraph.types import Interrupt
from pydantic import PrivateAttr

from endstop.cutover._compare import same
from endstop.cutover.tape import TapeExhausted, messages_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from langchain_core.callbacks import CallbackManagerForLLMRun
    from langchain_core.messages import AIMessage, BaseMessage
    from langchain_core.runnables import Runnable

    from endstop._messages import JsonValue
    from endstop.cutover.tape import RecordedCall, RecordedError, RecordedTurn

_asked: ContextVar[tuple[Any, str | None]] = ContextVar("endstop_played_call")
"""The arguments of the call that is played, before the schema fills them up, and its id."""


class RecordedModel(BaseChatModel):
    """A chat model that gives the recorded answers of a turn in order, whatever it is asked, and raises its errors.

    Raises `TapeExhausted` where it is asked once more than was recorded.
    """

    _turn: RecordedTurn = PrivateAttr()
    _asked: int = PrivateAttr(default=0)
    _lock: threading.Lock = PrivateAttr(default_factory=threading.Lock)

    def __init__(self, turn: RecordedTurn) -> None:
        super().__init__()
        self._turn = turn

    @property
    def _llm_type(self) -> str:
        return "recorded"

    def _get_invocation_params(self, stop: list[str] | None = None, **kwargs: Any) -> dict[str, Any]:
        """What the agent asks for alone: what the recorded model was made with is not known."""
        return {"stop": stop, **kwargs}

    def bind_tools(
        self,
        tools: Sequence[dict[str, Any] | type | Callable[..., Any] | BaseTool],
        *,
        tool_choice: str | None = None,
        **kwargs: Any,
    ) -> Runnable[LanguageModelInput, AIMessage]:
        """This model, offered tools: they change nothing but what a recorder sees."""
        choice = {} if tool_choice is None else {"tool_choice": tool_choice}
        return self.bind(tools=[convert_to_openai_tool(tool) for tool in tools], **choice, **kwargs)

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        with self._lock:
            number = self._asked
            self._asked += 1
        request = self._turn.requests[number] if number < len(self._turn.requests) else None
        if request is not None and request.error is not None:
            raise _raised(request.error)
        if request is None or request.answer is None:
            raise TapeExhausted(f"answer number {number + 1}")
        [answer] = messages_of([request.answer])
        return ChatResult(generations=[ChatGeneration(message=answer)])


def recorded_tools(turn: RecordedTurn, tools: Sequence[BaseTool]) -> list[BaseTool]:
    """Stand-ins of the tools, with the same names and schemas, that return what the tools of this turn returned.

    A call is known by its id, where it has one, else by its arguments; calls of one id give their results in order. The
    tools themselves are never run. A stand-in raises the error that its tool raised, with the same name and text and as
    a subclass of it where that class is loaded; and `TapeExhausted` for a call that was not recorded.
    """
    calls = _Calls(turn.calls)
    return [_stand_in(tool, calls) for tool in tools]


class _Calls:
    """The recorded calls of a turn, each given out once."""

    def __init__(self, calls: Sequence[RecordedCall]) -> None:
        self._left = list(calls)
        self._lock = threading.Lock()

    def take(self, name: str, args: JsonValue, call_id: str | None) -> RecordedCall:
        with self._lock:
            for position, call in enumerate(self._left):
                by_id = call_id is not None and call.call_id is not None
                known = call.call_id == call_id if by_id else same(call.args, args)
                if call.name == name and call.finished and known:
                    return self._left.pop(position)
        raise TapeExhausted(f"result of {name} for the call {call_id}")


class _StandIn(BaseTool):
    response_format: Literal["content", "content_and_artifact"] = "content"
    _calls: _Calls = PrivateAttr()

    def play(self, calls: _Calls) -> None:
        self._calls = calls

    def run(self, tool_input: str | dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        token = _asked.set((tool_input, kwargs.get("tool_call_id")))
        try:
            return super().run(tool_input, *args, **kwargs)
        finally:
            _asked.reset(token)

    async def arun(self, tool_input: str | dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        token = _asked.set((tool_input, kwargs.get("tool_call_id")))
        try:
            return await super().arun(tool_input, *args, **kwargs)
        finally:
            _asked.reset(token)

    def _run(self, **kwargs: Any) -> object:
        args, call_id = _asked.get()
        call = self._calls.take(self.name, args, call_id)
        if call.interrupts:
            raise GraphInterrupt(tuple(Interrupt(value=one["value"], id=str(one["id"])) for one in call.interrupts))
        if call.error is not None:
            raise _raised(call.error)
        if call.message is None:
            return call.result
        [message] = messages_of([call.message])
        return message if call_id is not None else message.content

    async def _arun(self, **kwargs: Any) -> object:
        return self._run(**kwargs)


def _stand_in(tool: BaseTool, calls: _Calls) -> BaseTool:
    kept = ("return_direct", "handle_tool_error", "handle_validation_error", "metadata", "tags", "extras")
    shared = {name: getattr(tool, name) for name in kept if name in type(tool).model_fields}
    schema = tool.args_schema or tool.get_input_schema()
    stand_in = _StandIn(name=tool.name, description=tool.description, args_schema=schema, **shared)
    stand_in.play(calls)
    return stand_in


def _raised(error: RecordedError) -> Exception:
    """An error that reads like the recorded one, and is one where its class is loaded: nothing is imported for it."""
    module, _, name = error.name.rpartition(".")
    known = getattr(sys.modules.get(module), name, None)
    base = known if isinstance(known, type) and issubclass(known, Exception) else Exception

    def text(_: object) -> str:
        return error.text

    def body(namespace: dict[str, object]) -> None:
        namespace.update(__module__=module, __str__=text)

    made: type[Exception] = new_class(name, (base,), exec_body=body)
    # Not called: the class may want more than a text to be made of.
    return made.__new__(made, error.text)
