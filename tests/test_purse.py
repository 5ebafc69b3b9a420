"""How requests are paid: held before, settled after, with a final answer in reserve and nothing beyond a limit."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from endstop._agent import Agent
from endstop._budget import Budget, Hold
from endstop._errors import PriceUnknown
from endstop._estimate import BYTES_PER_TOKEN, ContextSize, text_tokens
from endstop._limits import LimitHit, PlanLimits, Price, Spent
from endstop._messages import Message, ModelTurn, ToolReturn, Usage, UserMessage
from endstop._purse import LEAST_OUTPUT_TOKENS, MOST_OUTPUT_TOKENS, ROOMY_OUTPUT_TOKENS, Purse
from endstop.models.scripted import ScriptedModel

GO: list[Message] = [UserMessage(content="Go" * 175)]
SIZE = ContextSize(0).of(GO)
NOTICE = "Answer now."
FLAT = Price(input_per_million=Decimal(1), output_per_million=Decimal(10), source="flat")
FREE = Price(input_per_million=Decimal(0), output_per_million=Decimal(0), source="free")


class Table:
    """Prices of the model that the tests use."""

    def __init__(self, price: Price | None) -> None:
        self.price = price

    def price_of(self, model: str) -> Price | None:
        """The price of that model and of no other."""
        return self.price if model == "scripted" else None


def search() -> str:
    """Find."""
    return "found"


class Payer:
    """A purse, its budget, and what stays in it."""

    def __init__(
        self,
        limits: PlanLimits | None = None,
        *,
        tools: bool = True,
        prices: Table | None = None,
        shared: Budget | None = None,
        spent: Spent | None = None,
    ) -> None:
        limits = limits or PlanLimits()
        agent = Agent(ScriptedModel([]), tools=[search] if tools else [], prices=prices)
        self.frame = agent._plan.frame_tokens
        self.budget = Budget(limits, parent=shared, spent=spent)
        self.purse = Purse(agent._plan, limits, self.budget)

    @property
    def spent(self) -> Spent:
        """What was spent so far."""
        return self.budget.spent(0.0)

    def round(self, messages: list[Message] = GO) -> Hold:
        """Hold an ordinary round, which must be granted."""
        hold = self.purse.hold_round(messages)
        assert isinstance(hold, Hold), hold
        return hold

    def final(self, messages: list[Message] = GO) -> Hold:
        """Hold the final answer, which must be granted."""
        hold = self.purse.hold_final(messages, NOTICE)
        assert isinstance(hold, Hold), hold
        return hold


def said(input_tokens: int, output_tokens: int, **fields: Any) -> ModelTurn:
    """A turn whose usage was measured."""
    return ModelTurn(text="x", usage=Usage(input_tokens=input_tokens, output_tokens=output_tokens, **fields))


# -- rounds and calls ------------------------------------------------------------------------------


@pytest.mark.parametrize("rounds", [1, 2, 10])
def test_the_last_round_is_held_back_for_the_final_answer(rounds: int) -> None:
    """10 rounds are 10 requests, never 11; of a single one the final answer is all."""
    payer = Payer(PlanLimits(max_model_rounds=rounds))
    for _ in range(rounds - 1):
        payer.purse.settle_refused(payer.round())
    hit = payer.purse.hold_round(GO)
    assert hit == LimitHit(limit="max_model_rounds", used=rounds - 1, allowed=rounds)
    payer.purse.settle_refused(payer.final())
    assert payer.spent.model_rounds == payer.spent.model_calls == rounds
    assert isinstance(payer.purse.hold_final(GO, NOTICE), LimitHit)


def test_of_no_round_there_is_no_final_answer_either() -> None:
    """0 is none at all."""
    payer = Payer(PlanLimits(max_model_rounds=0))
    assert payer.purse.hold_round(GO) == LimitHit(limit="max_model_rounds", used=0, allowed=0)
    assert payer.purse.hold_final(GO, NOTICE) == LimitHit(limit="max_model_rounds", used=0, allowed=0)
    assert payer.spent == Spent()


@pytest.mark.parametrize(
    ("limits", "tools"),
    [
        (PlanLimits(max_model_calls=3, on_limit="stop"), True),
        (PlanLimits(max_model_calls=3, on_limit="raise"), True),
        (PlanLimits(max_model_calls=3), False),
    ],
)
def test_without_a_final_answer_all_rounds_are_ordinary(limits: PlanLimits, tools: bool) -> None:
    """Where none is asked for, and where every round is asked for one."""
    payer = Payer(limits, tools=tools)
    assert not payer.purse.keeps_reserve
    for _ in range(3):
        payer.round().settle()
    assert payer.purse.hold_round(GO) == LimitHit(limit="max_model_calls", used=3, allowed=3)
    payer.purse.release()
    assert payer.budget.left("model_calls") == [0]


def test_another_attempt_is_paid_as_a_call_and_not_as_a_round() -> None:
    """A retry is of the same round; where no call is left it is refused, the reserve untouched."""
    payer = Payer(PlanLimits(max_model_calls=3))
    hold = payer.round()
    payer.purse.settle_refused(hold)
    again = payer.purse.hold_again(hold)
    assert isinstance(again, Hold)
    payer.purse.settle_refused(again)
    assert (payer.spent.model_rounds, payer.spent.model_calls) == (1, 2)
    assert isinstance(payer.purse.hold_again(hold), LimitHit)
    payer.final().settle()
    assert payer.spent.model_calls == 3


def test_without_limits_on_tokens_or_money_nothing_is_held_of_them() -> None:
    """No request is capped; what was used is counted all the same."""
    payer = Payer()
    hold = payer.round()
    assert hold.amounts == {"model_rounds": 1, "model_calls": 1}
    assert payer.purse.cap(hold) is None
    payer.purse.settle(hold, said(100, 20), GO, 0)
    assert payer.spent == Spent(model_rounds=1, model_calls=1, input_tokens=100, output_tokens=20)


# -- tokens ----------------------------------------------------------------------------------------


def test_a_request_is_capped_at_what_is_left() -> None:
    """Its input, the final answer's reserve and its own output fit together, to the token."""
    payer = Payer(PlanLimits(max_tokens=3_000, answer_tokens=500))
    hold = payer.round()
    size = payer.frame + SIZE
    assert payer.purse.cap(hold) == 3_000 - 2 * size - 500
    assert payer.budget.left("tokens") == [0]
    payer.purse.settle(hold, said(size, 100), GO, 0)
    assert payer.budget.left("tokens") == [3_000 - 2 * size - 600]


def test_output_tokens_cap_a_request_too() -> None:
    """Of 1,000 output tokens, the final answer keeps a quarter at most."""
    payer = Payer(PlanLimits(max_output_tokens=1_000))
    assert payer.purse.cap(payer.round()) == 750
    assert payer.budget.left("output_tokens") == [0]


def test_a_request_leaves_half_of_ample_room_to_others() -> None:
    """Runs that share a budget run at once, and do not starve each other."""
    shared = Budget(PlanLimits(max_output_tokens=24_000))
    first, second = (Payer(PlanLimits(on_limit="stop"), shared=shared) for _ in range(2))
    assert first.purse.cap(first.round()) == 12_000
    assert second.purse.cap(second.round()) == 6_000
    ample = Payer(PlanLimits(max_output_tokens=1_000_000))
    assert ample.purse.cap(ample.round()) == MOST_OUTPUT_TOKENS, "providers refuse to write more at once"
    small = Payer(PlanLimits(max_output_tokens=ROOMY_OUTPUT_TOKENS, on_limit="stop"))
    assert small.purse.cap(small.round()) == ROOMY_OUTPUT_TOKENS


def test_no_request_is_sent_that_could_not_say_anything() -> None:
    """Room for a few tokens is none: the limit is used up then, and is named."""
    size = Payer().frame + SIZE
    enough, short = (
        Payer(PlanLimits(max_tokens=2 * size + LEAST_OUTPUT_TOKENS + left, answer_tokens=0)) for left in (0, -1)
    )
    assert enough.purse.cap(enough.round()) == LEAST_OUTPUT_TOKENS
    assert short.purse.hold_round(GO) == LimitHit(
        limit="max_tokens", used=0, allowed=2 * size + LEAST_OUTPUT_TOKENS - 1
    )


def test_the_final_answer_may_write_all_that_is_left() -> None:
    """Nothing comes after it; the notice that asks for it is paid as well."""
    payer = Payer(PlanLimits(max_tokens=3_000))
    payer.purse.settle(payer.round(), said(200, 20), GO, 0)
    grown = [*GO, said(200, 20), ToolReturn(call_id="1", name="search", content="x" * 350)]
    final = payer.final(grown)
    size = ContextSize(payer.frame).of(grown) + text_tokens(NOTICE)
    assert payer.purse.cap(final) == 3_000 - 220 - size
    assert payer.budget.left("tokens") == [0]


def test_a_final_answer_that_no_longer_fits_is_refused_and_keeps_its_reserve_until_the_end() -> None:
    """A tool's return may fill what was kept; then the ladder goes on below."""
    payer = Payer(PlanLimits(max_tokens=3_000))
    payer.purse.settle(payer.round(), said(200, 20), GO, 0)
    hit = payer.purse.hold_final([*GO, ToolReturn(call_id="1", name="search", content="x" * 20_000)], NOTICE)
    assert isinstance(hit, LimitHit)
    assert (hit.limit, hit.used) == ("max_tokens", 220)
    payer.purse.release()
    payer.purse.release()
    assert payer.budget.left("tokens") == [2_780]


def test_usage_that_is_not_reported_is_estimated_and_said_to_be() -> None:
    """A provider without usage cannot take a run beyond its limit unseen."""
    payer = Payer(PlanLimits(max_tokens=10_000))
    payer.purse.settle(payer.round(), ModelTurn(text="x" * 350), GO, 350)
    assert payer.spent.input_tokens == payer.frame + SIZE
    assert payer.spent.output_tokens == text_tokens("x" * 350)
    assert payer.spent.unmeasured == 1


def test_a_request_that_was_cut_short_is_paid_for_what_was_written() -> None:
    """The provider bills it, and reports nothing."""
    payer = Payer(PlanLimits(max_tokens=10_000))
    payer.purse.settle(payer.round(), None, GO, 350)
    assert (payer.spent.model_calls, payer.spent.unmeasured) == (1, 1)
    assert payer.spent.output_tokens == int(350 / BYTES_PER_TOKEN)
    assert payer.spent.input_tokens == payer.frame + SIZE


def test_a_request_that_was_refused_is_a_call_without_tokens() -> None:
    """An error before the first word is not billed by tokens."""
    payer = Payer(PlanLimits(max_tokens=10_000))
    payer.purse.settle_refused(payer.round())
    assert payer.spent == Spent(model_rounds=1, model_calls=1)


def test_how_far_an_estimate_was_off_is_told() -> None:
    """It is the most by which a token limit can have been overshot."""
    payer = Payer(PlanLimits(max_tokens=3_000))
    hold = payer.round()
    held = int(hold.amounts["tokens"])
    payer.purse.settle(hold, said(held + 70, 7), GO, 0)
    assert payer.spent.underestimated_tokens == 77


def test_what_capped_an_answer_is_a_limit_or_the_model() -> None:
    """Where the limits had room for more, it was the model's own cap."""
    payer = Payer(PlanLimits(max_output_tokens=1_000, on_limit="stop"))
    assert payer.purse.what_capped(GO, 1_000) == LimitHit(limit="model_output_cap", used=1_000, allowed=1_000)
    payer.budget.charge({"output_tokens": 1_000})
    assert payer.purse.what_capped(GO, 1_000) == LimitHit(limit="max_output_tokens", used=1_000, allowed=1_000)
    assert payer.budget.left("output_tokens") == [0]


# -- money -----------------------------------------------------------------------------------------


def test_money_is_held_for_input_output_and_the_reserve() -> None:
    """A dollar buys so many tokens and no more."""
    payer = Payer(PlanLimits(max_cost=Decimal("0.02"), answer_tokens=500, max_model_rounds=None), prices=Table(FLAT))
    hold = payer.round()
    size = payer.frame + SIZE
    left = Decimal("0.02") - 2 * size * Decimal("0.000001") - 500 * Decimal("0.00001")
    assert payer.purse.cap(hold) == int(left / Decimal("0.00001"))
    assert 0 <= payer.budget.left("cost")[0] < Decimal("0.00001")
    payer.purse.settle(hold, said(1_000, 100, cached_input_tokens=500), GO, 0)
    assert payer.spent.cost == Decimal("0.002")
    assert payer.spent.price_source == "flat"


def test_prices_without_a_limit_are_charged_and_cap_nothing() -> None:
    """Who gives a price table wants to know the cost."""
    payer = Payer(prices=Table(FLAT))
    hold = payer.round()
    assert payer.purse.cap(hold) is None
    payer.purse.settle(hold, said(1_000, 100), GO, 0)
    assert (payer.spent.cost, payer.spent.price_source) == (Decimal("0.002"), "flat")


def test_a_model_without_a_price_costs_nothing_where_the_cost_is_not_limited() -> None:
    """And no source is named, so that 0 is seen to be no price."""
    payer = Payer(prices=Table(None))
    payer.purse.settle(payer.round(), said(1_000, 100), GO, 0)
    assert (payer.spent.cost, payer.spent.price_source) == (0, None)


@pytest.mark.parametrize("prices", [None, Table(None)])
def test_a_cost_limit_without_a_price_is_refused_before_anything_is_sent(prices: Table | None) -> None:
    """Never silently 0: the model is named."""
    with pytest.raises(PriceUnknown) as caught:
        Payer(PlanLimits(max_cost=1), prices=prices)
    assert caught.value.model == "scripted"
    with pytest.raises(PriceUnknown):
        Payer(prices=prices, shared=Budget(PlanLimits(max_cost=1)))


@pytest.mark.parametrize("prices", [None, Table(None)])
def test_a_price_can_be_assumed(prices: Table | None) -> None:
    """It is charged, and named as assumed; a known price goes before it."""
    assumed = Price(input_per_million=Decimal(2), output_per_million=Decimal(20))
    payer = Payer(PlanLimits(max_cost=1, assume_price=assumed), prices=prices)
    payer.purse.settle(payer.round(), said(1_000, 100), GO, 0)
    assert (payer.spent.cost, payer.spent.price_source) == (Decimal("0.004"), "assumed")
    known = Payer(PlanLimits(max_cost=1, assume_price=assumed), prices=Table(FLAT))
    assert known.spent.price_source == "flat"


def test_a_price_that_a_shared_budget_assumes_is_charged() -> None:
    """Whoever sets the limit for all may set the price with it."""
    shared = Budget(PlanLimits(max_cost=1, assume_price=FLAT))
    payer = Payer(shared=shared)
    payer.purse.settle(payer.round(), said(1_000, 100), GO, 0)
    assert shared.spent(0.0).cost == Decimal("0.002")


def test_what_an_earlier_leg_used_without_a_price_is_charged_when_one_is_known() -> None:
    """A cost limit that is set on a resume is one of the whole run; what was priced before is not charged again."""
    earlier = Spent(model_calls=1, input_tokens=1_000, output_tokens=100)
    late = Payer(PlanLimits(max_cost=1), prices=Table(FLAT), spent=earlier)
    assert (late.spent.cost, late.spent.price_source) == (Decimal("0.002"), "flat")
    priced = replace(earlier, cost=Decimal("0.5"), price_source="flat")
    assert Payer(PlanLimits(max_cost=1), prices=Table(FLAT), spent=priced).spent.cost == Decimal("0.5")


def test_a_free_model_is_never_stopped_by_a_cost_limit() -> None:
    """A price of 0 is a price."""
    payer = Payer(PlanLimits(max_cost=0), prices=Table(FREE))
    assert payer.purse.cap(payer.round()) == MOST_OUTPUT_TOKENS


# -- whole runs ------------------------------------------------------------------------------------

growth = st.lists(st.tuples(st.floats(0, 1), st.integers(0, 2_000)), max_size=12)
limit = st.none() | st.integers(0, 20_000)


@given(
    limits=st.builds(
        PlanLimits,
        max_model_rounds=st.integers(0, 8),
        max_model_calls=st.none() | st.integers(0, 8),
        max_tokens=limit,
        max_output_tokens=limit,
        max_cost=st.none() | st.integers(0, 200).map(lambda n: n * Decimal("0.001")),
        answer_tokens=st.integers(0, 2_000),
        on_limit=st.sampled_from(["answer", "stop"]),
    ),
    growth=growth,
)
def test_a_run_whose_input_is_as_estimated_stays_inside_every_limit(
    limits: PlanLimits, growth: list[tuple[float, int]]
) -> None:
    """Whatever the model writes within its cap and the tools return, and the final answer with it."""
    payer = Payer(limits, prices=Table(FLAT))
    messages = list(GO)
    size = ContextSize(payer.frame)
    for share, returned in growth:
        hold = payer.purse.hold_round(messages)
        if isinstance(hold, LimitHit):
            break
        cap = payer.purse.cap(hold)
        turn = said(size.of(messages), int((2_000 if cap is None else cap) * share))
        payer.purse.settle(hold, turn, messages, 0)
        messages += [turn, ToolReturn(call_id="1", name="search", content="x" * returned)]
    final = payer.purse.hold_final(messages, NOTICE) if limits.on_limit == "answer" else None
    if isinstance(final, Hold):
        asked = size.of(messages) + text_tokens(NOTICE)
        payer.purse.settle(final, said(asked, payer.purse.cap(final) or 0), messages, 0)
    payer.purse.release()
    spent = payer.spent
    assert spent.underestimated_tokens == 0
    for used, allowed in (
        (spent.model_rounds, limits.max_model_rounds),
        (spent.model_calls, limits.max_model_calls),
        (spent.tokens, limits.max_tokens),
        (spent.output_tokens, limits.max_output_tokens),
        (spent.cost, limits.max_cost),
    ):
        assert allowed is None or used <= allowed
    left = payer.budget.left("model_rounds", "tokens")
    assert left == [
        limits.max_model_rounds - spent.model_rounds,
        None if limits.max_tokens is None else limits.max_tokens - spent.tokens,
    ]
