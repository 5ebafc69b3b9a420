"""What `BoundMiddleware` does around one visit of the model node, and around one call of a tool.

Both are the same from sync and from async code: the hooks differ in nothing but how they call what they wrap.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, TypeAlias
from uuid import uuid4

from langchain.agents.middleware.types import ModelRequest, ModelResponse
from langchain_core.messages import AIMessage, BaseMessage
from langgraph.errors import GraphBubbleUp, GraphInterrupt

from endstop._budget import Hold
from endstop._errors import LimitExceeded
from endstop._limits import LimitHit, Spent
from endstop._messages import ModelTurn, ToolReturn
from endstop._results import AgentResult, best_text, limit_reason
from endstop._state import RunState, as_data
from endstop.langgraph._agent_meters import ModelMeter
from endstop.langgraph._agent_run import newest_turn
from endstop.langgraph._channels import ENDING, added
from endstop.langgraph._compat import task_of, write_channels
from endstop.langgraph._history import (
    final_notice,
    kernel_messages,
    marked,
    near_limits,
    not_run,
    nudge,
    stopped,
    unanswered,
)
from endstop.langgraph._meter import Stop, metered
from endstop.langgraph._pay import Request
from endstop.models._langchain_codec import as_json, capped, model_name, read_finish_reason, read_usage

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from langchain.agents.middleware.types import ToolCallRequest
    from langchain_core.messages import ToolMessage
    from langchain_core.runnables import RunnableConfig
    from langgraph.types import Command

    from endstop._messages import ToolCall
    from endstop._results import Rung
    from endstop.langgraph._agent_run import AgentRun
    from endstop.langgraph._limits import GraphEnding
    from endstop.langgraph._pay import Payment

AnyRequest: TypeAlias = "ModelRequest[Any]"
AnyResponse: TypeAlias = "ModelResponse[Any]"

AGENT = "agent"
"""The name of every agent here: a middleware is not told the one that its agent has."""

JUMP = "jump_to"
"""The channel in which LangChain's agents are told where to go after a node."""

_TOO_LATE = "the time was up before the final answer was there"
_CUT = "the final answer was cut at its output cap"
_TOOL_SETTINGS = ("tool_choice", "parallel_tool_calls")
"""Settings of a model that providers refuse in a request without tools."""


class ModelVisit:
    """One visit of the model node: an ordinary round, the final answer, or the end without one.

    ::

        with visit:
            while (request := visit.next_request()) is not None:
                with visit.attempt():
                    visit.take(handler(request))
        return visit.response
    """

    def __init__(self, run: AgentRun, request: AnyRequest, config: RunnableConfig, *, had_ended: bool) -> None:
        self.response: AnyResponse = ModelResponse(result=[])
        self._run = run
        self.is_final = False
        self._is_over = False
        self._request = request
        self._config = config
        self._messages = run.sound(request.messages)
        self._rounds = run.enter_round(task_of(config))
        self._attempt: Attempt | None = None
        self._ending: dict[str, object] = {ENDING: None} if had_ended else {}

    def __enter__(self) -> ModelVisit:
        self._run.budget.start_clock(time.monotonic())
        self._run.calls.end()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._run.budget.stop_clock(time.monotonic())
        if error is None:
            write_channels(self._config, self._run.leave(uuid4().hex) | self._ending)

    # Asking.

    def next_request(self) -> AnyRequest | None:
        """What the model is to be asked next; `None` where the visit is over."""
        if self._is_over:
            return None
        run, tools, notices = self._run, self._request.tools, list[BaseMessage]()
        run.charge_summary(self._priced(self._messages, []))
        hit = run.find_hit(self._messages)
        if hit is None:
            loop = run.watch_for_loops(self._messages, tools)
            hit = run.record.hit
            notices = [nudge(loop)] if loop is not None else []
        if hit is None:
            near = run.near_limits()
            notices += [near_limits(near)] if near else []
            messages: list[Any] = [*self._messages, *notices]
            payment = run.purse.hold(self._priced(messages, tools), rounds=self._rounds, for_answer=True)
            if not isinstance(payment, LimitHit):
                return self._asked(payment, self._request.override(messages=messages))
            hit = payment
        run.stop_at(hit)
        if run.may_answer():
            last: list[Any] = [*self._messages, final_notice()]
            payment = run.purse.hold_final(self._priced(last, []))
            if not isinstance(payment, LimitHit):
                self.is_final = True
                return self._asked(payment, self._without_tools().override(messages=last))
        self._conclude([])
        return None

    def attempt(self) -> Attempt:
        """What the request is made in: it charges every call that is made for it, and ends quietly at a limit."""
        assert self._attempt is not None
        return self._attempt

    def seconds_left(self) -> float | None:
        """The seconds that the request may take; `None` where nothing limits them."""
        return self._run.seconds_left()

    def cut_off(self) -> None:
        """The time was up before the request was answered."""
        if self.is_final:
            self._run.note(_TOO_LATE)
        else:
            self._run.stop_at(self._run.time_hit())

    def _asked(self, payment: Payment, request: AnyRequest) -> AnyRequest:
        self._attempt = Attempt(self._run, payment, final=self.is_final)
        cap = self._run.purse.cap(payment)
        return request if cap is None else request.override(model=capped(request.model, cap))

    def _without_tools(self) -> AnyRequest:
        """The request with the tools taken away; the form of the answer stays."""
        settings = {key: value for key, value in self._request.model_settings.items() if key not in _TOOL_SETTINGS}
        return self._request.override(tools=[], tool_choice=None, model_settings=settings)

    def _priced(self, messages: Sequence[BaseMessage], tools: Sequence[object]) -> Request:
        request = self._request
        frame = self._run.frame_tokens(request.system_prompt, tools)
        return Request(messages=messages, model=model_name(request.model), frame_tokens=frame)

    # Taking what was answered.

    def take(self, response: AnyResponse) -> None:
        """Take an answer; what others made of a refused call is none."""
        assert self._attempt is not None
        if self._attempt.is_refused:
            return
        self.response, self._is_over = response, True
        answer, _ = newest_turn(response.result)
        if self.is_final:
            self._take_final(response, answer or AIMessage(""))
            return
        self._run.offered(self._request.tools)
        if answer is not None and not answer.tool_calls and self._was_cut(answer):
            self._run.stop_at_cap(self._attempt.payment)
            self._end("last_text", str(answer.text), response.result)
        elif response.structured_response is not None or answer is None or not answer.tool_calls:
            self._run.purse.release()

    def _take_final(self, response: AnyResponse, answer: AIMessage) -> None:
        text = str(answer.text)
        self._run.wrap_up("answered")
        if not answer.tool_calls and self._was_cut(answer):
            self._run.note(_CUT)
        if response.structured_response is not None or (text.strip() and not answer.tool_calls):
            self._end("model_answer", text, response.result)
            return
        # It asks for tools all the same, or says nothing. Only a message that asks for none ends the graph.
        refused = [not_run(call.call_id, call.name, self._reason()) for call in unanswered(response.result)]
        if text.strip():
            self._end("model_answer", text, [*response.result, *refused, AIMessage(text)])
        else:
            self._conclude([*response.result, *refused])

    def _conclude(self, said: list[BaseMessage]) -> None:
        """End with the best text that there is without asking."""
        own = kernel_messages([*self._run.own(self._messages), *said])
        ran = self._run.spent().tools
        rung, text = best_text(
            [message for message in own if not isinstance(message, ToolReturn) or message.name in ran]
        )
        self._end(rung, text, [*said, AIMessage(text or f"There is no answer: {self._reason()}.")])

    def _end(self, rung: Rung, text: str, result: list[BaseMessage]) -> None:
        """End the run: its newest message says how, and so does the state."""
        self._is_over = True
        has_ended = self._run.end()
        ending = self._run.ending(rung, text, _not_run([*_newest(self._messages), *result]))
        if has_ended or self._run.bounds.limits.on_limit == "raise":
            # A graph that comes back to the model after the end takes no answer for one, and would for ever.
            raise LimitExceeded(ending, self._partial(ending, result))
        data = as_data(ending)
        assert isinstance(data, dict)
        self._ending = {ENDING: data}
        if self._request.response_format is not None and not self._request.tools:
            # An agent whose answer has a form, and that has no tools besides, goes on until it has one.
            self._ending[JUMP] = "end"
        at = max(index for index, message in enumerate(result) if isinstance(message, AIMessage))
        newest = result[at]
        assert isinstance(newest, AIMessage)
        mark = {key: value for key, value in data.items() if key != "text"}  # That is the message's own.
        said = [*result[:at], marked(newest, mark), *result[at + 1 :]]
        self.response = ModelResponse(result=said, structured_response=self.response.structured_response)

    def _partial(self, ending: GraphEnding, said: list[BaseMessage]) -> AgentResult[object]:
        messages = [*self._messages, *said]
        state = RunState(
            run_id=self._run.record.run_id,
            agent=AGENT,
            limits=self._run.bounds.limits,
            messages=kernel_messages(messages),
            spent=ending.spent,
            hit=self._run.record.hit,
            stop_reason=ending.stop_reason,
        )
        output = {"messages": messages, ENDING: ending}
        return AgentResult(output=output, text=ending.text, stop_reason=ending.stop_reason, ending=ending, state=state)

    def _was_cut(self, answer: AIMessage) -> bool:
        """Whether the answer ended at the cap that its request had from us."""
        assert self._attempt is not None
        cap = self._run.purse.cap(self._attempt.payment)
        usage = read_usage(as_json(answer.usage_metadata)) if cap is not None and answer.usage_metadata else None
        if cap is None or usage is None or usage.output_tokens < cap:
            return False
        return read_finish_reason(as_json(answer.response_metadata), False) == "length"

    def _reason(self) -> str:
        hit = self._run.record.hit
        return limit_reason(hit) if hit is not None else ""


class Attempt:
    """A request while it is made, with whatever its making calls: retries, other models, a choice of tools."""

    def __init__(self, run: AgentRun, payment: Payment, *, final: bool) -> None:
        self.payment = payment
        self._run = run
        self._final = final
        self._meter = ModelMeter(run.budget, run.bounds.limits, run.purse, payment)
        self._metered = metered(self._meter)

    @property
    def is_refused(self) -> bool:
        """Whether a limit kept a call from being made."""
        return self._meter.hit is not None

    def __enter__(self) -> Attempt:
        self._metered.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        self._metered.__exit__(None, None, None)
        meter = self._meter
        meter.settle_open()
        if meter.unused is not None:
            # A round in which nothing was asked: the answer was at hand.
            hold = meter.unused.hold
            hold.settle({"model_rounds": hold.amounts.get("model_rounds", 0)})
        if meter.hit is not None:
            self._run.stop_at(meter.hit)
        if meter.hit is not None and _is_refusal(error):
            return True
        if self._final and isinstance(error, Exception) and not isinstance(error, GraphBubbleUp):
            # Whatever keeps the final answer from being there, the run ends with the best that it has.
            self._run.note(f"the final answer failed: {error}")
            return True
        return False


class ToolVisit:
    """One call of a tool: paid before it starts, metered while it runs, and answered whatever happens.

    ::

        with visit:
            if visit.may_start:
                visit.result = handler(request)
        return visit.answer
    """

    def __init__(self, run: AgentRun, request: ToolCallRequest, config: RunnableConfig) -> None:
        self.result: ToolMessage | Command[Any] | None = None
        self._run = run
        self._call_id = request.tool_call["id"] or ""
        self._name = request.tool_call["name"]
        self._config = config
        # A tool that nobody knows is not executed, and costs nothing.
        is_known = request.tool is not None or self._name in run.record.tools
        allotted = run.allot(request.state["messages"], self._call_id, self._name) if is_known else None
        self._hit = allotted if isinstance(allotted, LimitHit) else run.out_of_time()
        self._paid = allotted if isinstance(allotted, Hold) else None
        self._meter = run.tool_meter(self._paid)
        self._metered = metered(self._meter)

    @property
    def answer(self) -> ToolMessage | Command[Any]:
        """What answers the call, when the visit is over."""
        assert self.result is not None
        return self.result

    @property
    def may_start(self) -> bool:
        """Whether it is paid for, and there is time."""
        return self._hit is None

    def seconds_left(self) -> float | None:
        """The seconds that the call may take; `None` where nothing limits them."""
        return self._run.seconds_left()

    def cut_off(self) -> None:
        """The time was up before the call was done."""
        self._hit = self._run.time_hit()

    def __enter__(self) -> ToolVisit:
        self._run.budget.start_clock(time.monotonic())
        self._metered.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        self._metered.__exit__(None, None, None)
        self._meter.settle_open()
        self._run.budget.stop_clock(time.monotonic())
        is_stopped = self._meter.hit is not None and _is_refusal(error)
        if self._paid is not None and isinstance(error, GraphInterrupt):
            self._run.calls.forget(self._call_id, self._paid)
        elif self._paid is not None:
            self._paid.settle(None if self._meter.has_started else {})
        if error is not None and not is_stopped:
            return False
        self._hit = self._hit or self._meter.hit
        if self.result is None and self._hit is not None:
            unrun = stopped if self._meter.has_started else not_run
            self.result = unrun(self._call_id, self._name, limit_reason(self._hit))
        write_channels(self._config, self._run.add(self._spent(), self._meter.effects, self._hit))
        return True

    def _spent(self) -> Spent:
        spent = self._meter.budget.spent(time.monotonic())
        if self._paid is None or not self._meter.has_started:
            return spent
        return added(spent, Spent(tool_calls=1, tools={self._name: 1}))


def _is_refusal(error: BaseException | None) -> bool:
    """Whether an error that came after something was refused is the refusal, or what others made of it."""
    return isinstance(error, Stop) or (isinstance(error, Exception) and not isinstance(error, GraphBubbleUp))


def _newest(messages: Sequence[BaseMessage]) -> list[BaseMessage]:
    """The newest turn with what answers it."""
    turn, rest = newest_turn(messages)
    return [turn, *rest] if turn is not None else []


def _not_run(messages: Sequence[BaseMessage]) -> tuple[ToolCall, ...]:
    """The calls that were asked for and not run, or not to their end."""
    read = kernel_messages(messages)
    unrun = {message.call_id for message in read if isinstance(message, ToolReturn) and message.status == "not_run"}
    calls = (call for message in read if isinstance(message, ModelTurn) for call in message.tool_calls)
    return tuple(call for call in calls if call.call_id in unrun)
