"""How the model calls of a graph are paid: what each will cost, what is held for it, and what it did cost."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from langchain_core.messages import AIMessage, BaseMessage

from endstop._budget import Amounts, Budget, Hold, usage_amounts
from endstop._errors import PriceUnknown
from endstop._estimate import MESSAGE_TOKENS, message_tokens, text_tokens, turn_tokens
from endstop._limits import LimitHit, Number, Pricing
from endstop._messages import ModelTurn, Usage
from endstop._prices import GenaiPrices
from endstop._purse import LEAST_OUTPUT_TOKENS, MOST_OUTPUT_TOKENS
from endstop.langgraph._history import kernel_messages

if TYPE_CHECKING:
    from endstop._limits import PlanLimits, Prices

FIRST_OUTPUT_TOKENS = 1_024
"""What a graph's model is taken to write before it has answered once; afterwards it is the longest answer so far."""

_UNITS = ("tokens", "output_tokens", "cost")
_ROUND: dict[str, Number] = {"model_rounds": 1, "model_calls": 1}
_CALL: dict[str, Number] = {"model_calls": 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A model call that is about to be made.

    `cap` are the output tokens that it may write, where it says so; `frame_tokens` the size of its tools.
    """

    messages: Sequence[BaseMessage]
    model: str
    cap: int | None = None
    frame_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Payment:
    """A call that is paid for: what is held for it, and what is known of it until it is settled."""

    hold: Hold
    price: Pricing | None
    input_tokens: int


class GraphPurse:
    """Pays the model calls of one run of a graph out of its budget, and keeps the final answer's reserve in it.

    Safe to use from several threads at once. The requests of a graph are not ours to cap: what is held for
    an answer is the longest so far, and an answer that is longer overruns a limit on tokens by the difference,
    which `Spent.underestimated_tokens` tells.
    """

    def __init__(self, budget: Budget, limits: PlanLimits, *, prices: Prices | None, keeps_reserve: bool) -> None:
        self._budget = budget
        self._limited = any(left is not None for left in budget.left(*_UNITS))
        self._prices = prices
        self._known: dict[str, Pricing | None] = {}
        self._longest_output = 0
        self._keeps_reserve = keeps_reserve
        self._reserve: Hold | None = None
        quarters = [bound // 4 for bound in (limits.max_tokens, limits.max_output_tokens) if bound is not None]
        self._answer_tokens = min([limits.answer_tokens, *quarters])
        self._lock = threading.Lock()

    def keep_reserve(self) -> None:
        """Hold the reserve from the beginning, so that what is bound inside leaves it, where there is room for it."""
        if self._keeps_reserve:
            hold = self._budget.reserve(self._amounts(0, self._answer_tokens, None, 1))
            self._reserve = hold if isinstance(hold, Hold) else None

    def hold(self, request: Request, *, rounds: int, for_answer: bool) -> Payment | LimitHit:
        """Hold what a call takes, and with it the reserve for a final answer.

        `rounds` is 1 for the first call of a round. The reserve grows with the conversation that the final
        answer will be asked from; `for_answer` says that this is the one.
        """
        size = self._size(request)
        price = self._price(request.model)
        with self._lock:
            output = self._output_tokens(request, size, price)
            ordinary = self._amounts(size, output, price, rounds)
            if not self._keeps_reserve:
                hold = self._budget.reserve(ordinary)
            else:
                hold = self._hold_with_reserve(ordinary, size, price, for_answer=for_answer)
        return hold if isinstance(hold, LimitHit) else Payment(hold=hold, price=price, input_tokens=size)

    def hold_final(self, request: Request) -> Payment | LimitHit:
        """Hold what the final answer takes: the reserve, and of all else that is left what one answer may write."""
        size, price = self._size(request), self._price(request.model)
        with self._lock:
            room = self._room(size, price, self._reserve.amounts if self._reserve is not None else {})
            output = LEAST_OUTPUT_TOKENS if room is None else max(min(room, MOST_OUTPUT_TOKENS), LEAST_OUTPUT_TOKENS)
            hold = self._budget.exchange(self._reserve, self._amounts(size, output, price, 1))
            if isinstance(hold, LimitHit):
                return hold
            self._reserve = None
        return Payment(hold=hold, price=price, input_tokens=size)

    def cap(self, payment: Payment) -> int | None:
        """The output tokens that the request may write; `None` where nothing limits them."""
        return int(payment.hold.amounts["output_tokens"]) if self._limited else None

    def settle(self, payment: Payment, answer: AIMessage | None) -> None:
        """Charge what the call used, estimated where the provider does not tell.

        `None` is the answer of a call that was cut off: its input was sent and is billed.
        """
        usage = _usage(answer) or Usage(
            input_tokens=payment.input_tokens, output_tokens=_written(answer), measured=False
        )
        held = payment.hold.amounts
        cost = None if payment.price is None else payment.price.cost(usage)
        with self._lock:
            self._longest_output = max(self._longest_output, usage.output_tokens)
        used = usage_amounts(
            usage,
            cost,
            reserved_tokens=int(held.get("tokens", 0)),
            reserved_output_tokens=int(held.get("output_tokens", 0)),
        )
        payment.hold.settle(used | _calls(payment.hold))

    def settle_refused(self, payment: Payment) -> None:
        """Charge a call that failed before anything was written: the call, and no tokens."""
        payment.hold.settle(_calls(payment.hold))

    def release(self) -> None:
        """Give back what is held for the final answer."""
        with self._lock:
            if self._reserve is not None:
                self._reserve.release()
                self._reserve = None

    def _hold_with_reserve(
        self, ordinary: dict[str, Number], size: int, price: Pricing | None, *, for_answer: bool
    ) -> Hold | LimitHit:
        if self._reserve is not None and not (for_answer and self._limited):
            return self._budget.reserve(ordinary)  # The reserve is as large as it must be.
        final = self._amounts(size, self._answer_tokens, price, 1)
        both = {unit: final.get(unit, 0) + ordinary.get(unit, 0) for unit in {**final, **ordinary}}
        hold = self._budget.exchange(self._reserve, both)
        if isinstance(hold, LimitHit):
            return hold
        # What was taken in one step is parted here: nobody else has seen the hold of both yet.
        hold.amounts = final
        self._reserve = hold
        return Hold(budget=self._budget, amounts=ordinary)

    def _amounts(self, size: int, output: int, price: Pricing | None, rounds: int) -> dict[str, Number]:
        """The amounts of a call; tokens are held only where something limits them."""
        if not self._limited:
            return _ROUND if rounds else _CALL
        amounts: dict[str, Number] = {"tokens": size + output, "output_tokens": output, **(_ROUND if rounds else _CALL)}
        if price is not None:
            amounts["cost"] = price.cost(Usage(input_tokens=size, output_tokens=output))
        return amounts

    def _output_tokens(self, request: Request, size: int, price: Pricing | None) -> int:
        """What the call is taken to write. The first one takes no more than a half of the room that there is."""
        if not self._limited:
            return 0
        expected = self._longest_output or FIRST_OUTPUT_TOKENS
        if request.cap is not None:
            expected = min(expected, request.cap)
        room = None if self._longest_output else self._room(size, price, {})
        return max(expected if room is None else min(expected, room // 2), LEAST_OUTPUT_TOKENS)

    def _room(self, size: int, price: Pricing | None, free: Amounts) -> int | None:
        """The output tokens that every limit has room for, the amounts in `free` counted as free; `None`: no limit."""
        tokens, output, cost = self._budget.left(*_UNITS)
        rooms: list[Number] = []
        if tokens is not None:
            rooms.append(tokens + free.get("tokens", 0) - size)
        if output is not None:
            rooms.append(output + free.get("output_tokens", 0))
        if cost is not None and price is not None:
            of_input = price.cost(Usage(input_tokens=size))
            of_output = (price.cost(Usage(input_tokens=size, output_tokens=1_000)) - of_input) / 1_000
            if of_output:
                rooms.append((cost + free.get("cost", 0) - of_input) / of_output)
        return int(min(rooms)) if rooms else None

    def _size(self, request: Request) -> int:
        """The estimated input tokens: what the provider measured for the newest answer, and what came since."""
        if not self._limited:
            return 0
        messages = request.messages
        for index in range(len(messages) - 1, -1, -1):
            message = messages[index]
            if isinstance(message, AIMessage) and message.usage_metadata:
                measured = message.usage_metadata["input_tokens"] + message.usage_metadata["output_tokens"]
                return measured + _estimate(messages[index + 1 :])
        return request.frame_tokens + _estimate(messages)

    def _price(self, model: str) -> Pricing | None:
        """The price of a model; `None` where nothing is to be priced.

        Raises:
            PriceUnknown: a cost limit is set, here or above, and no price is known or assumed.
        """
        limited = self._limited and self._budget.left("cost")[0] is not None
        if self._prices is None and not limited:
            return None
        if model not in self._known:
            price = (self._prices or GenaiPrices()).price_of(model) or self._budget.assume_price
            if price is None and limited:
                raise PriceUnknown(model)
            if price is not None:
                self._budget.name_price_source(price.source)
            self._known[model] = price
        return self._known[model]


def _usage(answer: AIMessage | None) -> Usage | None:
    """What an answer took, where its provider tells."""
    usage = answer.usage_metadata if answer is not None else None
    if not usage:
        return None
    cached = (usage.get("input_token_details") or {}).get("cache_read")
    return Usage(
        input_tokens=usage["input_tokens"], output_tokens=usage["output_tokens"], cached_input_tokens=cached or 0
    )


def _written(answer: AIMessage | None) -> int:
    """The estimated output tokens of an answer."""
    read = kernel_messages([answer]) if answer is not None else []
    return sum(turn_tokens(turn) for turn in read if isinstance(turn, ModelTurn))


def _estimate(messages: Sequence[BaseMessage]) -> int:
    return sum(map(_message_tokens, messages))


def _message_tokens(message: BaseMessage) -> int:
    """The estimated tokens of a message; most are plain text, which needs no reading in the kernel's terms."""
    if isinstance(message.content, str) and not isinstance(message, AIMessage):
        return MESSAGE_TOKENS + text_tokens(message.content)
    return sum(message_tokens(read) for read in kernel_messages([message]))


def _calls(hold: Hold) -> dict[str, Number]:
    return _ROUND if "model_rounds" in hold.amounts else _CALL
