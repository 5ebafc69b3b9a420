"""How a bound graph ends at a limit: the ladder of endings, and the messages that keep its history valid."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING, Any, TypeAlias, cast
from uuid import uuid4

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, convert_to_messages
from langchain_core.runnables import Runnable

from endstop._errors import ConfigError
from endstop._limits import LimitHit
from endstop._results import Rung, best_text, limit_reason, tool_digest
from endstop.langgraph import _compat
from endstop.langgraph._history import answers, final_notice, kernel_messages, repaired
from endstop.langgraph._meter import Metered
from endstop.langgraph._pay import Request
from endstop.langgraph._procedures import Call, InTime, OutOfTime, UserCall
from endstop.langgraph._reading import read_graph
from endstop.models._langchain_codec import capped, model_name

if TYPE_CHECKING:
    from langchain_core.runnables import RunnableConfig

    from endstop.langgraph._account import Account
    from endstop.langgraph._graph_map import GraphMap
    from endstop.langgraph._procedures import Action, Procedure

State: TypeAlias = Mapping[str, object]
Finish: TypeAlias = Callable[[State], object] | BaseChatModel | str
"""What ends a run at a limit: a function from the state to an update of it, a node's name, or a chat model."""

MESSAGES = "messages"
"""The key of the state under which a graph of messages has them."""


_NOT_ANSWERED = "the run has ended"
_FOUND_BESIDE = "Work that could not be finished had found:"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finisher:
    """What asks for the final answer of a graph, if anything does: a function, a node, or a chat model.

    `system` is the system message of the agent whose chat model it is. `pays` says that it calls a model, and so
    needs a reserve.
    """

    function: Callable[[State], object] | None = None
    node: Runnable[Any, object] | None = None
    model: BaseChatModel | None = None
    system: SystemMessage | None = None
    pays: bool = False

    @property
    def asks(self) -> bool:
        """Whether anything does."""
        return not (self.function is None and self.node is None and self.model is None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Closing:
    """What is to be added to the state of a run that is cut, and the text that it ends with."""

    update: dict[str, object]
    rung: Rung
    text: str
    note: str = ""

    def in_place_of(self, message: BaseMessage) -> Closing:
        """The same, with its last message in place of one that the graph has."""
        *said, newest = messages_of(self.update) or [message]
        renamed = newest.model_copy(update={"id": message.id})
        return replace(self, update={**self.update, MESSAGES: [*said, renamed]})


def finisher_of(graph: _compat.AnyPregel, finish: Finish | None) -> Finisher:
    """What asks for the final answer: as the caller says, else the chat model that the graph calls itself.

    Raises:
        ConfigError: `finish` is none of the three, or there is no such node.
    """
    if isinstance(finish, BaseChatModel):
        return Finisher(model=finish, pays=True)
    if isinstance(finish, str):
        node = _compat.node_runnable(graph, finish)
        if node is None:
            raise ConfigError("finish", finish, "use the name of one of the graph's nodes")
        return Finisher(node=node, pays=_compat.calls_model(node))
    if callable(finish) and not isinstance(finish, type):
        return Finisher(function=finish, pays=_compat.calls_model(finish))
    if finish is not None:
        raise ConfigError("finish", finish, "use a function of the state, the name of a node, or a chat model")
    if MESSAGES not in _compat.channels_of(graph):
        return Finisher()  # What a model is to answer from could not be known.
    model, system = next(iter(_compat.chat_models_of(graph)), (None, None))
    return Finisher(model=model, system=system, pays=model is not None and _goes_round(read_graph(graph)))


def _goes_round(graph: GraphMap) -> bool:
    """Whether a model's answer may be followed by another model call; a graph that only goes forward needs no reserve.

    Its last answer comes where the limit just allows it, and must not be kept from coming.
    """
    if graph.unknown or graph.api == "functional" or any(node.calls for node in graph.nodes):
        return True
    sources: dict[str, set[str]] = {}
    for edge in graph.edges:
        sources.setdefault(edge.target, set()).add(edge.source)
    try:
        TopologicalSorter(sources).prepare()
    except CycleError:
        return True
    return any(_goes_round(below) for _, below in graph.below())


class Closer:
    """Brings a run that is cut to its end."""

    def __init__(
        self, graph: _compat.AnyPregel, finisher: Finisher, account: Account, config: RunnableConfig | None
    ) -> None:
        self._graph = graph
        self._finisher = finisher
        self._account = account
        self._config = config

    def close(self, state: State, own: Sequence[BaseMessage], hit: LimitHit, *, ask: bool) -> Procedure[Closing]:
        """The ladder of endings, from the best rung that there is.

        `own` are the messages of this run; with `ask` the final answer is asked for.
        """
        meter, why = self._account.meter, limit_reason(hit)
        messages = messages_of(state)
        added: list[BaseMessage] = list(answers(messages, why, meter.known_results(messages, why))) if messages else []
        note = ""
        if ask:
            made = yield from self._made(state, messages, added, why)
            if isinstance(made, AIMessage):
                return _closing([*added, made], "model_answer", str(made.text))
            if isinstance(made, Closing):
                return made
            note = made
        rung, text = best_text(kernel_messages([*own, *added, *meter.found_beside(messages or [])]))
        if rung == "empty" and meter.last_message is not None:
            rung, text = "last_text", str(meter.last_message.text)
        if messages is None:
            return Closing(update={}, rung=rung, text=text, note=note)
        newest = messages[-1] if messages and not added else None
        if isinstance(newest, AIMessage) and rung == "last_text" and newest.text == text:
            return _closing([newest], rung, text, note)
        return _closing([*added, AIMessage(text or f"There is no answer: {why}.")], rung, text, note)

    def _made(
        self, state: State, messages: list[BaseMessage] | None, added: Sequence[BaseMessage], why: str
    ) -> Procedure[Closing | AIMessage | str]:
        """What the finisher makes: an end of its own, or the final answer; or why there is neither."""
        finisher = self._finisher
        if finisher.model is not None:
            return (yield from self._answer(finisher.model, messages, why)) if messages else ""
        valid = (
            {}
            if messages is None
            else {MESSAGES: repaired(messages, why, self._account.meter.known_results(messages, why))}
        )
        given = {**state, **valid}
        self._account.purse.release()
        action: Action
        if finisher.node is not None:
            config = _compat.node_config(self._graph, self._config)
            action = Call(finisher.node.invoke, finisher.node.ainvoke, given, config)
        else:
            assert finisher.function is not None
            action = UserCall("finish", finisher.function, given)
        meter = self._account.another_meter()
        try:
            made = yield InTime(Metered(action, meter), self._account.answer_seconds_left)
            return self._made_by_caller(made, state, messages, added)
        except OutOfTime:
            return "finish did not come to its end in time"
        except Exception as error:
            return f"finish failed: {error}"
        finally:
            meter.settle_open()

    def _made_by_caller(
        self, made: object, state: State, messages: list[BaseMessage] | None, added: Sequence[BaseMessage]
    ) -> Closing | str:
        """What the caller's own ending made, with the open calls answered before it; or why that is no end.

        Raises whatever the graph's reducers and the schema of its state raise at it.
        """
        given = _compat.update_in(made)
        if given is None:
            return f"finish gave no update of the state but {type(made).__name__}"
        known = _compat.state_keys(self._graph)
        update = {key: value for key, value in given.items() if key in known}
        said = _said(update.pop(MESSAGES, [])) if messages is not None else _answers_in(update.get(MESSAGES))
        text = next((str(message.text) for message in reversed(said) if isinstance(message, AIMessage)), "")
        if not update and not text.strip():
            return "finish gave no answer"
        if messages is not None:
            update |= _closing([*added, *said], "model_answer", text).update
        _compat.check_update(self._graph, state, update)
        return Closing(update=update, rung="model_answer", text=text)

    def _answer(self, model: BaseChatModel, messages: Sequence[BaseMessage], why: str) -> Procedure[AIMessage | str]:
        """The final answer, or why there is none."""
        meter, purse = self._account.meter, self._account.purse
        system = [self._finisher.system] if self._finisher.system is not None else []
        found = tool_digest(kernel_messages(meter.found_beside(messages)))
        beside = [HumanMessage(f"{_FOUND_BESIDE}\n{found}")] if found else []
        asked = [*system, *repaired(messages, why, meter.known_results(messages, why)), *beside, final_notice()]
        seconds = self._account.answer_seconds_left
        if seconds is not None and seconds <= 0:
            return "no time is left for a final answer"
        payment = purse.hold_final(Request(messages=asked, model=model_name(model)))
        if isinstance(payment, LimitHit):
            return ""
        asking = capped(model, purse.cap(payment))
        action = Metered(Call(asking.invoke, asking.ainvoke, asked, self._config), None)
        try:
            answer = yield InTime(action, seconds)
        except OutOfTime:
            purse.settle(payment, None)
            return "the final answer did not come in time"
        except Exception as error:
            purse.settle_refused(payment)
            return f"the final answer failed: {error}"
        except BaseException:  # It was cancelled from outside, and what was sent is billed.
            purse.settle(payment, None)
            raise
        assert isinstance(answer, AIMessage)
        purse.settle(payment, answer)
        if not answer.text.strip():
            return "the final answer was empty"
        return _without_calls(answer)


def messages_of(state: State) -> list[BaseMessage] | None:
    """The messages in a state; `None` where it has none under their usual key."""
    found = state.get(MESSAGES)
    if not isinstance(found, list):
        return None
    kept = cast("list[object]", found)  # checked next
    messages = [message for message in kept if isinstance(message, BaseMessage)]
    return messages if len(messages) == len(kept) else None


def _closing(added: list[BaseMessage], rung: Rung, text: str, note: str = "") -> Closing:
    # The state that is returned and the one that is stored must have the same ids.
    named = [message if message.id else message.model_copy(update={"id": str(uuid4())}) for message in added]
    return Closing(update={MESSAGES: named}, rung=rung, text=text, note=note)


def _said(given: object) -> list[BaseMessage]:
    """The messages that the caller's own ending gave, in any form that LangGraph takes; a bare text is an answer.

    Raises:
        ValueError: something among them is no message.
    """
    said = cast("list[object]", given) if isinstance(given, list) else [given]  # checked next
    forms: list[Any] = [AIMessage(one) if isinstance(one, str) else one for one in said]
    messages = convert_to_messages(forms)
    if messages and isinstance(newest := messages[-1], AIMessage):
        messages[-1] = _without_calls(newest)
    return repaired(messages, _NOT_ANSWERED)


def _answers_in(given: object) -> list[BaseMessage]:
    """The messages in what may be anything."""
    return [given] if isinstance(given, BaseMessage) else messages_of({MESSAGES: given}) or []


def _without_calls(answer: AIMessage) -> AIMessage:
    """What still asks for tools is an answer none the less, and nothing will answer the calls."""
    return answer.model_copy(update={"tool_calls": [], "invalid_tool_calls": []})
