"""Prices of models, from the table that the genai-prices package carries."""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
from typing import TYPE_CHECKING

from endstop._limits import Price
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

    def flat(self) -> Price | None:
        """The same price as plain rates, a hundred times faster to ask; `None` where rates don't tell it all."""
        import genai_prices

        found = genai_prices.calc_price(genai_prices.Usage(), model_ref=self._model, provider_id=self._provider)
        if isinstance(found.model.prices, list):
            return None  # it depends on the time of the request
        million = 1_000_000
        of_input = self.cost(Usage(input_tokens=million))
        price = Price(
            input_per_million=of_input,
            output_per_million=self.cost(Usage(output_tokens=million)),
            cached_input_per_million=self.cost(Usage(input_tokens=million, cached_input_tokens=million)),
            source=self.source,
        )
        # Tiers depend on the size of the input; a price of the request itself shows in the smallest.
        sizes = [(0, 0), (1_000, 0), (1_000, 1_000), (10 * million, 0), (10 * million, 10 * million)]
        probes = [
            Usage(input_tokens=size, cached_input_tokens=cached, output_tokens=output)
            for size, cached in sizes
            for output in (0, 1_000)
        ]
        return price if all(price.cost(usage) == self.cost(usage) for usage in probes) else None


@functools.cache
def _lookup(model: str) -> Pricing | None:
    if importlib.util.find_spec("genai_prices") is None:
        return None
    # The provider that is named goes first: the table matches loosely, and another one's price may be near the name.
    candidates: list[tuple[str, str | None]] = []
    for mark in (":", "/"):
        provider, found, name = model.partition(mark)
        if found:
            candidates.append((name, provider))
    candidates.append((model, None))
    for name, known_provider in candidates:
        price = _TablePrice(name, known_provider)
        try:
            price.cost(Usage())
        except LookupError:
            continue
        return price.flat() or price
    return None
