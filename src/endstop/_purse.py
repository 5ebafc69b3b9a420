"""How a run pays for its model requests: what each will cost, what is held for it, and what it did cost."""

from __future__ import annotations

from collections import defaultdict
from decimal import Decimal
from typing import TYPE_CHECKING

from endstop._budget import Amounts, Budget, Hold, usage_amounts
from endstop._errors import ConfigError, PriceUnknown
from endstop._estimate import BYTES_PER_TOKEN, ContextSize, text_tokens, turn_tokens
from endstop._limits import LimitHit, Number, Price, Pricing
from endstop._messages import ModelTurn, Usage
from endstop._prices import GenaiPrices

if TYPE_CHECKING:
    from collections.abc import Sequence

    from endstop._limits import PlanLimits
    from endstop._messages import Message
    from endstop._steps import Plan

LEAST_OUTPUT_TOKENS = 16
"""Room for fewer output tokens than this is no room: not even a short tool call fits."""

UNCAPPED_OUTPUT_TOKENS = 1_000_000
"""What is held for an answer that only a limit on something else bounds (a free model under a cost limit)."""

MOST_OUTPUT_TOKENS = 16_384
"""The most that is asked for in one answer: more than common models write at once is refused by their providers."""

ROOMY_OUTPUT_TOKENS = 4_096
"""A request may write this many tokens where that many are left; of what is left beyond, it may take a half.

The other half is there for whoever shares the budget at the same time.
"""


class Purse:
    """Pays the requests of one run out of its budget, and keeps the final answer's reserve in it.

    The first `history_length` messages of the run are a history that it was given.

    Raises:
        PriceUnknown: a cost limit is set, here or above, and no price is known or assumed.
    """

    def __init__(self, plan: Plan, limits: PlanLimits, budget: Budget, *, history_length: int = 0) -> None:
        self._budget = budget
        self._size = ContextSize(plan.frame_tokens, history_length)
        self._limited = any(left is not None for left in budget.left("tokens", "output_tokens", "cost"))
        self._price = _price(plan, budget)
        earlier = budget.spent(0.0)
        if self._price is not None and earlier.tokens and earlier.price_source is None:
            # Tokens of an earlier leg that nothing priced: the limit is one of the whole run.
            used = Usage(input_tokens=earlier.input_tokens, output_tokens=earlier.output_tokens)
            Hold(budget=budget, amounts={}).settle({"cost": self._price.cost(used)})
        if self._price is not None:
            budget.name_price_source(self._price.source)
        self._token_costs = _token_costs(self._price)
        self._reserve: Hold | None = None
        # An agent without tools gives the same answer in an ordinary round, so that it needs no reserve.
        self.keeps_reserve = limits.on_limit == "answer" and bool(plan.tools)
        quarters = [bound // 4 for bound in (limits.max_tokens, limits.max_output_tokens) if bound is not None]
        self._answer_tokens = min([limits.answer_tokens, *quarters])

    def hold_round(self, messages: Sequence[Message]) -> Hold | LimitHit:
        """Hold what an ordinary round takes, and with it the reserve for a final answer to the grown conversation."""
        request = self._quote(messages)
        if not self.keeps_reserve:
            return self._budget.reserve(request.amounts(self._share(request)))
        final = request.amounts(self._answer_tokens)
        ordinary = request.amounts(self._share(request, less=final))
        both = self._budget.exchange(self._reserve, {unit: n + ordinary[unit] for unit, n in final.items()})
        if isinstance(both, LimitHit):
            return both
        # What was taken in one step is parted here: nobody else has seen the hold of both yet.
        both.amounts = final
        self._reserve = both
        return Hold(budget=self._budget, amounts=ordinary)

    def hold_final(self, messages: Sequence[Message], notice: str) -> Hold | LimitHit:
        """Hold what the final answer and the notice that asks for it take: the reserve, and all else that is left."""
        request = self._quote(messages, text_tokens(notice))
        cap = min(max(self._room(request), LEAST_OUTPUT_TOKENS), MOST_OUTPUT_TOKENS)
        hold = self._budget.exchange(self._reserve, request.amounts(cap))
        if isinstance(hold, Hold):
            self._reserve = None
        return hold

    def hold_again(self, hold: Hold) -> Hold | LimitHit:
        """Hold what another attempt of a request takes; its round is paid already."""
        return self._budget.reserve({unit: n for unit, n in hold.amounts.items() if unit != "model_rounds"})

    def cap(self, hold: Hold) -> int | None:
        """The output tokens that the request of this hold may write; `None` where nothing limits them."""
        return int(hold.amounts["output_tokens"]) if self._limited else None

    def settle(self, hold: Hold, turn: ModelTurn | None, messages: Sequence[Message], written: int) -> None:
        """Charge what the request used; a part that the provider did not report is estimated.

        `turn` is `None` for a request cut short after `written` characters: it is billed as well.
        """
        usage = turn.usage if turn is not None else None
        if usage is None:
            output = turn_tokens(turn) if turn is not None else int(written / BYTES_PER_TOKEN)
            usage = Usage(input_tokens=self._size.of(messages), output_tokens=output, measured=False)
        cost: Decimal | None = None
        try:
            cost = None if self._price is None else _sound_cost(self._price.cost(usage), self._price)
        finally:  # a price table that fails must not leave the request unpaid
            held = hold.amounts
            used = usage_amounts(
                usage,
                cost,
                reserved_tokens=int(held.get("tokens", 0)),
                reserved_output_tokens=int(held.get("output_tokens", 0)),
            )
            hold.settle(used | _calls(hold))

    def settle_refused(self, hold: Hold) -> None:
        """Charge a request that was refused before anything was written: the call, and no tokens."""
        hold.settle(_calls(hold))

    def release(self) -> None:
        """Give back what is held for the final answer."""
        if self._reserve is not None:
            self._reserve.release()
            self._reserve = None

    def what_capped(self, messages: Sequence[Message], cap: int) -> LimitHit:
        """The limit that left room for no more than `cap` output tokens."""
        probe = self._budget.reserve(self._quote(messages).amounts(cap))
        if isinstance(probe, LimitHit):
            return probe
        probe.release()
        return LimitHit(limit="model_output_cap", used=cap, allowed=cap)

    def _quote(self, messages: Sequence[Message], more_tokens: int = 0) -> _Quote:
        size = self._size.of(messages) + more_tokens
        if self._price is None or not self._limited:
            return _Quote(limited=self._limited, size=size, input_cost=None, token_cost=_FREE)
        if self._token_costs is not None:
            of_input, of_output = self._token_costs
            return _Quote(limited=True, size=size, input_cost=of_input * size, token_cost=of_output)
        input_cost = self._price.cost(Usage(input_tokens=size))
        thousand = self._price.cost(Usage(input_tokens=size, output_tokens=1_000)) - input_cost
        return _Quote(limited=True, size=size, input_cost=input_cost, token_cost=thousand / 1_000)

    def _share(self, request: _Quote, less: Amounts | None = None) -> int:
        """The output tokens that an ordinary request may write beside the amounts in `less`."""
        if not request.limited:
            return 0
        room = self._room(request, less)
        share = max(min(room, ROOMY_OUTPUT_TOKENS), room // 2, LEAST_OUTPUT_TOKENS)
        return min(share, MOST_OUTPUT_TOKENS)

    def _room(self, request: _Quote, less: Amounts | None = None) -> int:
        """The output tokens that every limit has room for, the reserve counted as free."""
        if not request.limited:
            return 0
        free = self._reserve.amounts if self._reserve is not None else _NOTHING
        less = less or _NOTHING
        tokens, output, cost = self._budget.left("tokens", "output_tokens", "cost")
        room: Number = UNCAPPED_OUTPUT_TOKENS
        if tokens is not None:
            room = min(room, tokens + free["tokens"] - less["tokens"] - request.size)
        if output is not None:
            room = min(room, output + free["output_tokens"] - less["output_tokens"])
        if cost is not None and request.input_cost is not None and request.token_cost:
            money = cost + free["cost"] - less["cost"] - request.input_cost
            room = min(room, money / request.token_cost)
        return max(int(room), 0)


class _Quote:
    """What a request will take: `size` tokens of input at `input_cost`, and `token_cost` for each token of output."""

    __slots__ = ("input_cost", "limited", "size", "token_cost")

    def __init__(self, *, limited: bool, size: int, input_cost: Decimal | None, token_cost: Decimal) -> None:
        self.limited = limited
        self.size = size
        self.input_cost = input_cost
        self.token_cost = token_cost

    def amounts(self, cap: int) -> Amounts:
        """The amounts with `cap` tokens of output; tokens are held only where something limits them."""
        if not self.limited:
            return _ROUND
        amounts: dict[str, Number] = {
            "model_rounds": 1,
            "model_calls": 1,
            "tokens": self.size + cap,
            "output_tokens": cap,
        }
        if self.input_cost is not None:
            amounts["cost"] = self.input_cost + self.token_cost * cap
        return amounts


_FREE = Decimal(0)
_ROUND: dict[str, Number] = {"model_rounds": 1, "model_calls": 1}
_ATTEMPT: dict[str, Number] = {"model_calls": 1}
_NOTHING: Amounts = defaultdict(int)


def _calls(hold: Hold) -> dict[str, Number]:
    return _ROUND if "model_rounds" in hold.amounts else _ATTEMPT


def _sound_cost(cost: object, price: Pricing) -> Decimal:
    """The cost, if it is one: tables are not all type-checked, and a wrong amount would break every budget above."""
    if not isinstance(cost, Decimal) or not cost.is_finite() or cost < 0:
        raise ConfigError("prices", cost, f"the table {price.source!r} must give a Decimal, 0 or more, for every usage")
    return cost


def _token_costs(price: Pricing | None) -> tuple[Decimal, Decimal] | None:
    """What one token of input and of output costs at a flat price; `None` where that depends on the request."""
    if not isinstance(price, Price):
        return None
    return price.input_per_million / 1_000_000, price.output_per_million / 1_000_000


def _price(plan: Plan, budget: Budget) -> Pricing | None:
    """The price that the run is charged by; `None` where there is no cost limit and no price table."""
    limited = budget.left("cost")[0] is not None
    if plan.prices is None and not limited:
        return None
    price = (plan.prices or GenaiPrices()).price_of(plan.model.name) or budget.assume_price
    if price is None:
        if limited:
            raise PriceUnknown(plan.model.name)
        return None
    return price
