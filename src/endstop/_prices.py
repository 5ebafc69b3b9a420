"""Prices of models, from the table that the genai-prices package carries."""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
from typing import TYPE_CHECKING

from endstop._messages import Usage

if TYPE_CHECKING:
    from decimal import Decimal

    from endstop._limits import Pricing


class GenaiPrices:
    """The offline price table of the `genai-prices` package (the extra `endstop[prices]`); nothing is fetched.

    A model is found by its name as providers write it, with a provider before a colon or slash where
    that is needed: `gpt-4o-mini`, `openai:gpt-4o-mini`. Without the package no price is known.
    """

    __slots__ = ()

    def price_of(self, model: str) -> Pricing | None:
        """The model's price, or `None` where the table does not have it."""
        return _lookup(model)


class _TablePrice:
    """The price of one model in the table, its tiers by input size included."""

    __slots__ = ("_model", "_provider", "source")

    def __init__(self, model: str, provider: str | None) -> None:
        self._model = model
        self._provider = provider
        self.source = f"genai-prices {importlib.metadata.version('genai-prices')}"

    def cost(self, usage: Usage) -> Decimal:
        import genai_prices

        counts = genai_prices.Usage(
            input_tokens=usage.input_tokens,
            output_tokens=usage.output_tokens,
            cache_read_tokens=min(usage.cached_input_tokens, usage.input_tokens),
        )
        return genai_prices.calc_price(counts, model_ref=self._model, provider_id=self._provider).total_price


@functools.cache
def _lookup(model: str) -> Pricing | None:
    if importlib.util.find_spec("genai_prices") is None:
        return None
    candidates: list[tuple[str, str | None]] = [(model, None)]
    for mark in (":", "/"):
        provider, found, name = model.partition(mark)
        if found:
            candidates.append((name, provider))
    for name, known_provider in candidates:
        price = _TablePrice(name, known_provider)
        try:
            price.cost(Usage())
        except LookupError:
            continue
        return price
    return None
