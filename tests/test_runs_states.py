"""A state machine over whole runs: whatever is asked, answered, cut off and gone on with, the promises hold."""

from __future__ import annotations

from collections import Counter

import anyio
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from endstop import Agent, AgentResult, Interrupt, ModelError, ModelTurn, PlanLimits, RunState, ToolContext, tool
from endstop._messages import pending_calls
from endstop.models.scripted import ScriptedModel, ScriptStep, call, forever, turn

CARDS = st.lists(st.sampled_from(["look", "fail", "pay", "ask", "child", "nobody"]), max_size=3)
COUNTED: Counter[str] = Counter()
"""How many runs and steps the machine has made, for the page that says so."""


class Runs(RuleBasedStateMachine):
    """One run after another, each with legs that end in every way there is."""

    @initialize()
    def make(self) -> None:
        """An agent with tools that work, fail, wait for approval, ask, and delegate."""
        self.cards: list[list[str]] = []
        self.executed: Counter[str] = Counter()
        self.requests = 0
        self.result: AgentResult[str] | None = None
        self.limits = PlanLimits()
        self.seq = 0
        self.was_cancelled = False

        def execute(name: str) -> str:
            self.executed[name] += 1
            return f"{name} {self.executed.total()}"

        def look(n: int) -> str:
            """Look."""
            return execute("look")

        def fail(n: int) -> str:
            """Fail."""
            raise ValueError(execute("fail"))

        def pay(n: int) -> str:
            """Pay."""
            return execute("pay")

        async def ask(n: int, context: ToolContext) -> str:
            """Ask a person."""
            if not context.answers:
                raise Interrupt("Which?", schema={"type": "string"})
            return execute("ask")

        approved = tool(requires_approval=True)(pay)
        below = ScriptedModel([forever(self.count(turn(calls=[call("pay", {"n": 1})])), self.count("paid"))])
        child = Agent(below, tools=[approved], name="child", loops=None)
        model = ScriptedModel([forever(self.next_turn)])
        tools = [look, fail, approved, ask, child.as_tool(description="Delegate.")]
        self.agent = Agent(model, tools=tools, loops=None)

    def count(self, step: ScriptStep) -> ScriptStep:
        """The step, counted as a request when it is taken."""

        def taken(_: object) -> ScriptStep:
            self.requests += 1
            return step

        return taken

    def next_turn(self, _: object) -> ScriptStep:
        """The next turn of the script, or an answer where it is over."""
        self.requests += 1
        names = self.cards.pop(0) if self.cards else []
        if names == ["nobody"]:
            return ModelError("down", status=400)
        calls = [call(name, {"task": "pay"} if name == "child" else {"n": self.requests}) for name in names]
        return turn("" if calls else "an answer", calls=calls)

    def leg(self, stop_after: int | None, *, answers: dict[str, object] | None = None) -> None:
        """One leg, cancelled after so many events; what it ended with is kept as JSON would keep it."""

        async def go() -> None:
            ended = self.result
            if ended is None:
                stream = self.agent.stream("Go.", limits=self.limits)
            else:
                stream = self.agent.resume_stream(ended, limits=self.limits, answers=answers)
            last: list[str] = []
            try:
                async with stream:
                    async for event in stream:
                        assert event.seq == self.seq + 1
                        self.seq = event.seq
                        COUNTED["events"] += 1
                        if len(event.path) == 1 and event.kind in ("done", "error", "cancelled"):
                            last.append(event.kind)
                        if stop_after is not None and event.seq >= stop_after:
                            stream.cancel()
            except ModelError as error:
                failed = error.state
                last.append("failed")
            else:
                failed = None
            if failed is not None:
                assert last == ["error", "failed"]
                self.result = AgentResult(output=None, text="", stop_reason="cancelled", ending=None, state=failed)
                return
            assert len(last) == 1
            self.result = AgentResult.from_json(stream.result.to_json())

        COUNTED["legs"] += 1
        self.was_cancelled = self.was_cancelled or stop_after is not None
        anyio.run(go)

    @precondition(lambda self: self.result is None or self.result.stop_reason == "completed")
    @rule(
        cards=st.lists(CARDS, max_size=5), rounds=st.integers(1, 8), tools=st.none() | st.integers(0, 6), stop=st.none()
    )
    def start(self, cards: list[list[str]], rounds: int, tools: int | None, stop: None) -> None:
        """A new run under drawn limits."""
        self.cards, self.result, self.seq, self.was_cancelled = cards, None, 0, False
        self.requests, self.executed = 0, Counter()
        self.limits = PlanLimits(max_model_rounds=rounds, max_tool_calls=tools)
        COUNTED["runs"] += 1
        self.leg(None)

    @precondition(lambda self: self.result is None or self.result.stop_reason == "completed")
    @rule(cards=st.lists(CARDS, min_size=1, max_size=4), stop=st.integers(1, 20))
    def start_and_cancel(self, cards: list[list[str]], stop: int) -> None:
        """A new run that is cancelled at some event."""
        self.cards, self.result, self.seq, self.was_cancelled = cards, None, 0, False
        self.requests, self.executed = 0, Counter()
        self.limits = PlanLimits(max_model_rounds=20)
        COUNTED["runs"] += 1
        self.leg(stop)

    @precondition(lambda self: self.result is not None and self.result.stop_reason == "paused")
    @rule(data=st.data(), stop=st.none() | st.integers(1, 60))
    def answer(self, data: st.DataObject, stop: int | None) -> None:
        """Some of what is asked is answered, in any way there is."""
        assert self.result is not None
        chosen = data.draw(st.lists(st.sampled_from(self.result.pauses), min_size=1, unique_by=lambda p: p.pause_id))
        kinds = st.sampled_from(["approve", "reject"])
        answers: dict[str, object] = {
            pause.pause_id: {"type": data.draw(kinds)} if pause.kind == "approval" else "this one" for pause in chosen
        }
        self.leg(None if stop is None else self.seq + stop, answers=answers)

    @precondition(lambda self: self.result is not None and self.result.stop_reason not in ("completed", "paused"))
    @rule(more=st.integers(1, 5))
    def go_on(self, more: int) -> None:
        """A run that was cut short goes on with a higher limit."""
        rounds, tools = self.limits.max_model_rounds, self.limits.max_tool_calls
        assert rounds is not None
        self.limits = PlanLimits(max_model_rounds=rounds + more, max_tool_calls=None if tools is None else tools + more)
        self.leg(None)

    @invariant()
    def the_promises_hold(self) -> None:
        """No limit passed, every call answered or waited for, what was charged is what was done, JSON as it was."""
        if getattr(self, "result", None) is None:
            return
        assert self.result is not None
        state, spent = self.result.state, self.result.spent
        assert spent.model_calls == self.requests or (self.was_cancelled and spent.model_calls > self.requests)
        assert spent.model_rounds <= (self.limits.max_model_rounds or 0)
        assert self.limits.max_tool_calls is None or spent.tool_calls <= self.limits.max_tool_calls
        for name in ("look", "fail", "pay"):
            # A unit is taken before the tool starts: a cancellation may come between.
            paid = spent.tools.get(name, 0)
            assert paid == self.executed[name] or (self.was_cancelled and paid > self.executed[name])
        open_ids = {c.call_id for c in pending_calls(state.messages)}
        assert open_ids == {pause.call_id for pause in state.pauses}
        asked = [c.call_id for m in state.messages if isinstance(m, ModelTurn) for c in m.tool_calls]
        assert len(asked) == len(set(asked))
        assert RunState.from_json(state.to_json()) == state


def test_whatever_happens_to_runs_the_promises_hold() -> None:
    """Runs through random turns, failures, pauses, answers, cancellations and higher limits."""
    checks = [HealthCheck.too_slow, HealthCheck.filter_too_much]
    run_state_machine_as_test(
        Runs, settings=settings(max_examples=120, stateful_step_count=20, deadline=None, suppress_health_check=checks)
    )
    assert COUNTED["runs"] > 500
    assert COUNTED["legs"] > 1_000
    assert COUNTED["events"] > 8_000
