"""The facade: what callers hold who do not use a graph's interface, whatever serves their turns.

::

    agent = CutoverAgent(create_agent(...), config=AgentConfig(recursion_limit=50))
    response = await agent.run("Where is order A-7?", session_id="customer-3")
    async for chunk in agent.stream_chunks("And A-8?", session_id="customer-3"):
        ...

The same calls give the same shapes on an agent's graph, on the kernel in its place, and on an `Agent` of the kernel.
"""

from __future__ import annotations

import time
import uuid
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from endstop._agent import Agent
from endstop._errors import ConfigError, LimitExceeded, RunError
from endstop._state import RunState
from endstop.cutover._driving import Outlet, drive_async
from endstop.cutover._facade_turn import Asked, observed_chunk, observed_response
from endstop.cutover.ledger import TurnRecord, keep, spent_amounts
from endstop.cutover.projection import as_chunk, as_response
from endstop.cutover.rounds import rounds_for_recursion_limit
from endstop.turn_observation import observing

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Generator, Sequence

    from langchain_core.language_models import BaseChatModel
    from langchain_core.tools import BaseTool
    from langgraph.checkpoint.base import BaseCheckpointSaver
    from langgraph.graph.state import CompiledStateGraph

    from endstop._events import Event
    from endstop._limits import PlanLimits
    from endstop._messages import Message, Prompt
    from endstop._results import AgentResult
    from endstop.cutover._facade_turn import Asking, FacadeBody, Tell
    from endstop.cutover.ledger import TurnLedger
    from endstop.cutover.presets import AgentConfig, Procedure
    from endstop.cutover.projection import WireVersion
    from endstop.cutover.responses import AgentResponse, StreamChunk
    from endstop.cutover.switches import Surface, Switches

AnyAgent: TypeAlias = "CompiledStateGraph[Any, Any, Any, Any] | Agent[Any]"
"""What can serve the turns of a facade."""


class CutoverAgent:
    """An agent as callers hold it who do not use a graph's interface. Any number of turns may use it at the same time.

    `agent` is an agent's graph, which is cut over if it is not yet, or an `Agent` of the kernel, which has no legacy
    body. On a graph the switch of `invocation.run` decides the turns of `run` and `run_sync`, that of
    `invocation.stream` those of `stream_chunks`. `switches` and `ledger` are by default those that the graph was cut
    over with, and else those of the process.

    `config` gives each turn its `recursion_limit`: super-steps of a graph, and on an `Agent` the model rounds that
    they stand for (`rounds_for_recursion_limit`), at which a run stops without a last answer. Its switches send each
    turn to the legacy body.

    Raises:
        ConfigError: the agent is neither, or `config` asks of an `Agent` what only a graph can do.
    """

    def __init__(
        self,
        agent: AnyAgent,
        *,
        config: AgentConfig | None = None,
        switches: Switches | None = None,
        ledger: TurnLedger | None = None,
    ) -> None:
        self._body: FacadeBody
        if isinstance(agent, Agent):
            self._body = _KernelBody(agent, _limits_of(agent, config), ledger)
        else:
            from endstop.cutover._facade_graph import graph_body  # noqa: PLC0415 - an `Agent` does without LangGraph

            self._body = graph_body(agent, config, switches, ledger)

    @classmethod
    def from_preset(
        cls,
        config: AgentConfig,
        model: BaseChatModel,
        tools: Sequence[BaseTool],
        *,
        procedure: Procedure | None = None,
        checkpointer: BaseCheckpointSaver[str] | None = None,
        switches: Switches | None = None,
        ledger: TurnLedger | None = None,
    ) -> CutoverAgent:
        """The agent of a preset: its legacy graph, whose turns go to the kernel where the preset admits it.

        `procedure` and `checkpointer` are those of `legacy_graph`.

        Raises:
            ConfigError: there is no such preset, or the recursion limit is below 1.
        """
        from endstop.cutover.presets import Procedure, legacy_graph  # noqa: PLC0415 - an `Agent` does without LangGraph

        graph = legacy_graph(config, model, tools, procedure=procedure or Procedure(), checkpointer=checkpointer)
        return cls(graph, config=config, switches=switches, ledger=ledger)

    async def run(
        self, prompt: Asking, *, run_id: str | None = None, session_id: str | None = None, deps: object = None
    ) -> AgentResponse:
        """Serve a turn and return its response.

        `prompt` is text or a whole conversation: LangChain's messages, or their dicts, as `AgentResponse.messages`
        holds them. `session_id` is the thread of a graph that has a checkpointer; where none is given, one is drawn.
        `deps` is what tools are handed: `runtime.context` of a graph, `ToolContext.deps` of an `Agent`.

        LangChain and the ledger know the turn of a graph by a UUID: `run_id` itself, or the `uuid5` in `NAMESPACE_OID`
        of one that is none.

        Raises:
            RecursionExhaustedError: the recursion limit was reached without an answer; a `GraphRecursionError`.
            ConfigError: the prompt is empty, or no conversation.
            Exception: on a graph, what the model or a tool raised, as it is; what `Agent.run` raises on an `Agent`.
        """
        return await self._body.run(_asked(prompt, run_id, session_id, deps))

    def run_sync(
        self, prompt: Asking, *, run_id: str | None = None, session_id: str | None = None, deps: object = None
    ) -> AgentResponse:
        """`run` for code that is not async, with a model, tools and a checkpointer that need not be.

        Raises:
            UsageError: it was called on an `Agent` where an event loop is running; await `run` there.
        """
        return self._body.run_sync(_asked(prompt, run_id, session_id, deps))

    async def stream_chunks(
        self,
        prompt: Asking,
        *,
        run_id: str | None = None,
        session_id: str | None = None,
        deps: object = None,
        wire_version: WireVersion = 1,
    ) -> AsyncGenerator[StreamChunk]:
        """Serve a turn, chunk by chunk: `thinking` and `text_delta`, `tool_call`, `tool_result`, and `done` at its end.

        A stream that ends without `done` and without an error waits for a person; in wire version 2 a chunk says for
        what. Results of calls that run at once come as they are there. Closing the stream cancels the turn, and waits
        until it has ended. It runs on asyncio. Arguments as in `run`.

        Raises:
            RecursionExhaustedError: as `run`.
            AgentError: the turn of an `Agent` failed; `state` is all that was done.
            ConfigError: as `run`, or there is no such wire version.
            Exception: what the model or a tool of a graph raised, as it is.
        """
        if wire_version not in (1, 2):
            raise ConfigError("wire_version", wire_version, "use 1, or 2 for chunks that tell of pauses")
        asked = replace(_asked(prompt, run_id, session_id, deps), wire_version=wire_version)
        outlet: Outlet[StreamChunk] = Outlet(live=True)
        # The turn has a task of its own, so that what it sets in its context is not the reader's, nor another turn's.
        driven = drive_async(lambda: self._body.stream(asked, outlet.put), outlet)
        async with aclosing(driven):
            async for chunk in driven:
                yield chunk


def _asked(prompt: Asking, run_id: str | None, session_id: str | None, deps: object) -> Asked:
    session = None if session_id is None else str(session_id)  # callers are not all type-checked, and ledgers keep text
    return Asked(prompt=prompt, run_id=run_id or str(uuid.uuid4()), session_id=session, deps=deps)


# -- an agent of the kernel ------------------------------------------------------------------------


def _limits_of(agent: Agent[Any], config: AgentConfig | None) -> PlanLimits:
    """The limits of each turn. A last answer would be paid and then not be given, so none is asked for."""
    if config is None:
        return agent.limits
    from endstop.cutover.presets import preset_refusals  # noqa: PLC0415 - only a preset needs LangGraph

    if codes := preset_refusals(config):
        remedy = "give the agent's graph, which does what the kernel does not, or leave these out"
        raise ConfigError("config", ", ".join(codes), remedy)
    rounds = rounds_for_recursion_limit(config.recursion_limit)
    return replace(agent.limits, max_model_rounds=rounds, on_limit="stop")


@dataclass(slots=True)
class _Served:
    """How a run of the kernel stands, as far as it is known."""

    state: RunState | None = None


class _KernelBody:
    """Serves turns on an agent of the kernel."""

    def __init__(self, agent: Agent[Any], limits: PlanLimits, ledger: TurnLedger | None) -> None:
        self._agent = agent
        self._limits = limits
        self._ledger = ledger

    async def run(self, asked: Asked) -> AgentResponse:
        with self._recorded("invocation.run", asked) as served, _rounds_named(asked), observing() as seen:
            result = await self._agent.run(**self._arguments(asked))
            served.state = result.state
            return observed_response(_response(result, asked), seen)

    def run_sync(self, asked: Asked) -> AgentResponse:
        with self._recorded("invocation.run", asked) as served, _rounds_named(asked), observing() as seen:
            result = self._agent.run_sync(**self._arguments(asked))
            served.state = result.state
            return observed_response(_response(result, asked), seen)

    async def stream(self, asked: Asked, tell: Tell) -> None:
        with self._recorded("invocation.stream", asked) as served, _rounds_named(asked), observing() as seen:
            async with self._agent.stream(**self._arguments(asked)) as run:
                try:
                    async for event in run:
                        chunk = _chunk(event, asked)
                        if chunk is not None:
                            tell(observed_chunk(chunk, seen))
                finally:
                    served.state = run.state

    def _arguments(self, asked: Asked) -> dict[str, Any]:
        prompt, history = _question(asked.prompt)
        given: dict[str, Any] = {"limits": self._limits, "deps": asked.deps, "run_id": asked.run_id}
        return {"prompt": prompt, "history": history, **given}

    @contextmanager
    def _recorded(self, surface: Surface, asked: Asked) -> Generator[_Served]:
        """Leave the record of the turn when the block ends, however it ends."""
        began, served = time.perf_counter(), _Served()
        error: BaseException | None = None
        try:
            yield served
        except BaseException as raised:
            error = raised
            if isinstance(raised, RunError):
                raised.state = served.state = raised.state or served.state
            raise
        finally:
            spent = served.state.spent if served.state is not None else None
            record = TurnRecord(
                surface=surface,
                served_by="kernel",
                route="kernel",
                switch="on",
                run_id=asked.run_id,
                duration_ms=(time.perf_counter() - began) * 1_000,
                rounds=spent.model_rounds if spent is not None else None,
                error=type(error).__name__ if isinstance(error, Exception) else None,
                cancelled=error is not None and not isinstance(error, Exception),
                spent=spent_amounts(spent) if spent is not None else {},
                agent=self._agent.name,
                thread_id=asked.session_id,
            )
            keep(record, self._ledger)


def _question(prompt: Asking) -> tuple[Prompt, Sequence[Message]]:
    """What a run is asked, and the conversation before it."""
    if isinstance(prompt, str):
        return prompt, ()
    from endstop.cutover._facade_prompts import as_kernel  # noqa: PLC0415 - text does without LangChain

    return as_kernel(prompt)


def _response(result: AgentResult[object], asked: Asked) -> AgentResponse:
    return as_response(result, run_id=asked.run_id, session_id=asked.session_id or "")


def _chunk(event: Event, asked: Asked) -> StreamChunk | None:
    """The chunk of an event; a run that waits for a person has not come to its end.

    Agents below do not speak to the caller, and a limit that raises has an error of its own.
    """
    is_below = len(event.path) > 1
    is_limit = event.kind == "error" and event.code == LimitExceeded.code
    is_pause = event.kind == "done" and event.result.stop_reason == "paused"
    if is_below or is_limit or is_pause:
        return None
    return as_chunk(event, run_id=asked.run_id, wire_version=asked.wire_version)


@contextmanager
def _rounds_named(asked: Asked) -> Generator[None]:
    """Raise the error that callers catch where the rounds ran out in an agent that raises at its limits."""
    try:
        yield
    except LimitExceeded as error:
        _response(error.result, asked)
        raise
