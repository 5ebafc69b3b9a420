"""In the shadow the legacy body serves the caller, and the ledger says what the kernel would have done otherwise."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langchain.agents.middleware import dynamic_prompt
from langgraph.errors import GraphRecursionError

from endstop.cutover import MemoryTurnLedger, Switches, create_agent, cut_over, settle_shadows, use_ledger, use_switches
from tests.cutover.agents_for_tests import Shop, ainvoke, asked, asks, in_turn, invoke, looking, stream
from tests.cutover.clerks import Counted

SHADOW = Switches({"invocation.run": "shadow", "invocation.stream": "shadow"}, environ={})


@pytest.fixture
def ledger() -> Any:
    """The ledger of the process, for one test, with every switch on `shadow`."""
    fresh = MemoryTurnLedger()
    ledger_before, switches_before = use_ledger(fresh), use_switches(SHADOW)
    yield fresh
    settle_shadows()
    use_ledger(ledger_before)
    use_switches(switches_before)


def shadowed(**options: Any) -> tuple[Any, Shop]:
    """An agent of the cutover, and its shop."""
    real = Counted()
    return create_agent(real.model, [real.shop.look], **options), real.shop


@pytest.mark.parametrize("way", [invoke, ainvoke, stream])
def test_the_legacy_body_serves_and_the_replay_finds_no_difference(way: Any, ledger: MemoryTurnLedger) -> None:
    agent, shop = shadowed()
    way(agent, asked())
    assert settle_shadows(timeout_seconds=30)
    [record] = ledger.records()
    assert (record.served_by, record.route, record.refusals, record.differences) == ("legacy", "shadow", (), ())
    assert shop.ran == ["hall"]


def test_what_the_caller_gets_is_the_originals(ledger: MemoryTurnLedger) -> None:
    agent, _ = shadowed()
    got = invoke(agent, asked())["messages"]
    assert [message.content for message in got] == ["Where is the key?", "", "hall: nothing here", "3 messages"]


def test_the_callers_recursion_limit_holds_in_the_shadow(ledger: MemoryTurnLedger) -> None:
    """LangChain's own merging of configurations drops a limit of 25."""
    agent, shop = shadowed()
    for limit in (25, 3, 2):
        shop.ran.clear()
        config: Any = {"recursion_limit": limit, "callbacks": []}
        assert_ends_alike(lambda config=config: agent.invoke(asked(), config), fails=limit <= 3)
    endless = create_agent(in_turn(asks(("look", {"place": "hall"}))), [shop.look])
    shop.ran.clear()
    assert_ends_alike(lambda: endless.invoke(asked(), {"recursion_limit": 25}), fails=True)
    assert len(shop.ran) == 12


def assert_ends_alike(run: Any, *, fails: bool) -> None:
    """The run ends with LangGraph's error where it must, and only there."""
    if fails:
        with pytest.raises(GraphRecursionError):
            run()
    else:
        run()


def test_a_turn_that_the_kernel_would_refuse_is_not_replayed(ledger: MemoryTurnLedger) -> None:
    agent, _ = shadowed(interrupt_before=["tools"])
    invoke(agent, asked())
    [record] = ledger.records()
    assert (record.refusals, record.differences) == (("interrupt_before",), ())


def test_an_agent_of_which_nothing_is_known_is_served_and_not_replayed(ledger: MemoryTurnLedger) -> None:
    invoke(cut_over(looking()), asked())
    [record] = ledger.records()
    assert (record.route, record.differences) == ("shadow", ())


def test_a_turn_that_went_another_way_differs_by_name(ledger: MemoryTurnLedger) -> None:
    told: list[int] = []

    @dynamic_prompt
    def counts(request: Any) -> str:
        told.append(1)
        return f"This is request {len(told)}."

    agent, _ = shadowed(middleware=[counts])
    invoke(agent, asked())
    assert settle_shadows(timeout_seconds=30)
    [record] = ledger.records()
    assert "model_messages" in record.differences


def test_a_turn_that_its_caller_leaves_is_recorded_at_once(ledger: MemoryTurnLedger) -> None:
    agent, _ = shadowed()
    chunks = agent.stream(asked())
    next(chunks)
    chunks.close()
    [record] = ledger.records()
    assert (record.cancelled, record.differences) == (True, ())


def test_turns_at_once_are_each_recorded_once(ledger: MemoryTurnLedger) -> None:
    agent, _ = shadowed()

    async def all_at_once() -> None:
        await asyncio.gather(*(agent.ainvoke(asked(number=number)) for number in range(8)))

    asyncio.run(all_at_once())
    assert settle_shadows(timeout_seconds=60)
    assert [record.differences for record in ledger.records()] == [()] * 8
