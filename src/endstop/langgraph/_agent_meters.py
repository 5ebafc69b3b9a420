"""How `BoundMiddleware` meters and pays one visit of an agent's model node, and one call of a tool."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from endstop._budget import Budget, Hold, usage_amounts
from endstop._limits import LimitHit, PlanLimits
from endstop._messages import Usage
from endstop._purse import LEAST_OUTPUT_TOKENS, MOST_OUTPUT_TOKENS, ROOMY_OUTPUT_TOKENS
from endstop.langgraph._meter import Meter, active_meter
from endstop.langgraph._pay import GraphPurse, Payment, Request

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from langchain_core.messages import BaseMessage

    from endstop._budget import Amounts
    from endstop._limits import Number, Prices, Pricing

NO_LIMITS = PlanLimits(max_model_rounds=None, max_depth=None)
"""The limits of a scope that only counts."""


class AgentPurse(GraphPurse):
    """Pays the model calls of an agent, whose requests can be capped at what is left."""

    @property
    def is_limited(self) -> bool:
        """Whether anything limits tokens or money, here or above."""
        return self._limited

    def keep(self, messages: Sequence[BaseMessage]) -> None:
        """Hold the reserve of the final answer while tools run, where nothing holds it yet and there is room for it."""
        with self._lock:
            if self._keeps_reserve and self._reserve is None:
                size = self._size(Request(messages=messages, model=""))
                hold = self._budget.reserve(self._amounts(size, self._answer_tokens, None, 1))
                self._reserve = hold if isinstance(hold, Hold) else None

    def charge_unseen(self, request: Request, output_tokens: int) -> None:
        """Charge a call that was made where nothing meters: what it used is estimated."""
        usage = Usage(input_tokens=self._size(request), output_tokens=output_tokens, measured=False)
        price = self._price(request.model)
        used = usage_amounts(usage, None if price is None else price.cost(usage))
        Hold(budget=self._budget, amounts={}).settle(used | {"model_calls": 1})

    def what_capped(self, payment: Payment) -> LimitHit:
        """The limit that left no room for a longer answer than was paid for."""
        cap = int(payment.hold.amounts.get("output_tokens", 0))
        probe = self._budget.reserve(self._amounts(payment.input_tokens + cap, cap, payment.price, 1))
        if isinstance(probe, LimitHit):
            return probe
        probe.release()
        return LimitHit(limit="model_output_cap", used=cap, allowed=cap)

    def _output_tokens(self, request: Request, size: int, price: Pricing | None) -> int:
        """What the call may write: all that there is room for beside the reserve where that is little, else a half."""
        if not self._limited:
            return 0
        free: dict[str, Number] = {}
        if self._keeps_reserve:
            held: Amounts = self._reserve.amounts if self._reserve is not None else {}
            free = {unit: held.get(unit, 0) - amount for unit, amount in self._final(size, price).items()}
        room = self._room(size, price, free)
        if room is None:
            return MOST_OUTPUT_TOKENS
        return min(max(min(room, ROOMY_OUTPUT_TOKENS), room // 2, LEAST_OUTPUT_TOKENS), MOST_OUTPUT_TOKENS)

    def _final(self, size: int, price: Pricing | None) -> dict[str, Number]:
        return self._amounts(size, self._answer_tokens, price, 1)


class ModelMeter(Meter):
    """Charges what one visit of the model node calls: the first call is paid already, others belong to its round.

    `unused` is what was paid and not used.
    """

    def __init__(self, budget: Budget, limits: PlanLimits, purse: AgentPurse, paid: Payment) -> None:
        super().__init__(budget, limits, purse, above=active_meter())
        self.unused: Payment | None = paid

    def on_chat_model_start(self, *args: Any, run_id: UUID, parent_run_id: UUID | None = None, **kwargs: Any) -> None:
        """Pay a call; it is made at the level that the agent itself is on."""
        if self.root is None:
            self.root, self._base_depth = run_id, self._depth_of(parent_run_id)
        super().on_chat_model_start(*args, run_id=run_id, parent_run_id=parent_run_id, **kwargs)

    def _pay_model(self, request: Request, *, rounds: int, for_answer: bool) -> Payment | LimitHit:
        paid, self.unused = self.unused, None
        return paid or self._purse.hold(request, rounds=0, for_answer=False)


class ToolMeter(Meter):
    """Charges what one call of a tool runs, to a scope of its own, so that it is known what that was.

    The first execution is paid by a hold that is ended when the call has ended; those of a retry are
    charged as they come. `children` are the runs of sub-agents that the run knows to be charged to it.
    """

    def __init__(
        self, budget: Budget, limits: PlanLimits, prices: Prices | None, paid: Hold | None, children: set[str]
    ) -> None:
        scope = Budget(NO_LIMITS, parent=budget)
        purse = GraphPurse(scope, NO_LIMITS, prices=prices, keeps_reserve=False)
        super().__init__(scope, limits, purse, above=active_meter())
        self.children = children
        self.has_started = False
        self._paid = paid

    def _pay_tool(self, name: str) -> LimitHit | None:
        if self._paid is None or self.has_started:
            return super()._pay_tool(name)
        self.has_started = True
        return None
