"""The price table that comes with the extra: looked up by a model's name, never guessed, never fetched."""

from __future__ import annotations

import importlib.metadata
import sys
from decimal import Decimal

import genai_prices
import pytest
from genai_prices.data_snapshot import get_snapshot
from hypothesis import example, given
from hypothesis import strategies as st

from endstop._limits import Price
from endstop._messages import Usage
from endstop._prices import GenaiPrices

MILLION = 1_000_000


@pytest.mark.parametrize("name", ["gpt-4o-mini", "openai:gpt-4o-mini", "openai/gpt-4o-mini", "gpt-4o-mini-2024-07-18"])
def test_a_model_is_found_by_its_name_with_or_without_its_provider(name: str) -> None:
    """Providers and routers write a name in these ways; it is the same price."""
    price = GenaiPrices().price_of(name)
    assert price is not None
    assert price.cost(Usage(input_tokens=MILLION, output_tokens=MILLION)) == Decimal("0.75")
    assert price.cost(Usage()) == 0


@pytest.mark.parametrize("name", ["openrouter:openai/gpt-4o", "bedrock:anthropic.claude-3-5-sonnet-20241022-v2:0"])
def test_a_name_may_hold_the_mark_that_parts_it_from_its_provider(name: str) -> None:
    """Only the first mark parts."""
    assert GenaiPrices().price_of(name) is not None


@pytest.mark.parametrize(
    "name", ["", ":", "/", "::", "no-such-model", "openai:no-such-model", "openai:", "\x00", "a:b/c"]
)
def test_a_model_that_is_not_in_the_table_has_no_price(name: str) -> None:
    """Not a price of 0: who limits the cost is told."""
    assert GenaiPrices().price_of(name) is None


@given(st.text(max_size=30) | st.text("gpt-4o:/claude", max_size=30))
@example("gpt-")
def test_any_name_can_be_looked_up(name: str) -> None:
    """Names come from configuration; none of them raises, and a price that is found can be charged."""
    price = GenaiPrices().price_of(name)
    assert price is None or price.cost(Usage(input_tokens=1, output_tokens=1)) >= 0


def test_a_price_says_its_table_and_the_tables_version() -> None:
    """A result can be checked years later."""
    price = GenaiPrices().price_of("gpt-4o-mini")
    assert price is not None
    assert price.source == f"genai-prices {importlib.metadata.version('genai-prices')}"


def test_cached_input_is_cheaper_and_never_more_than_the_input() -> None:
    """A provider that reports more cached tokens than input gets no refund."""
    price = GenaiPrices().price_of("gpt-4o-mini")
    assert price is not None
    whole = price.cost(Usage(input_tokens=MILLION))
    cached = price.cost(Usage(input_tokens=MILLION, cached_input_tokens=MILLION))
    assert 0 < cached < whole
    assert price.cost(Usage(input_tokens=MILLION, cached_input_tokens=9 * MILLION)) == cached


def test_a_large_input_may_have_a_rate_of_its_own() -> None:
    """The tiers of the table count, not one rate for all sizes."""
    price = GenaiPrices().price_of("anthropic:claude-sonnet-4-5")
    assert price is not None
    assert price.cost(Usage(input_tokens=MILLION)) > 10 * price.cost(Usage(input_tokens=MILLION // 10))


def test_a_named_provider_is_the_one_whose_price_is_charged() -> None:
    """Over the table, every tenth model and all whose names are parted themselves: its own price, at every size.

    The table matches names loosely, so that another provider's model would be found under the whole name.
    """
    usages = [
        (0, 0, 0),
        (1_000, 0, 1),
        (1_000, 900, 1_000),
        (190_000, 0, 10),
        (210_000, 50_000, 10),
        (10**7, 10**6, 10**5),
    ]
    models = [(provider.id, model.id) for provider in get_snapshot().providers for model in provider.models]
    parted = [each for each in models if ":" in each[1] or "/" in each[1]]
    seen = 0
    for provider, model in {*models[::10], *parted[::5]}:
        price = GenaiPrices().price_of(f"{provider}:{model}")
        if price is None:
            continue
        seen += 1
        for asked, cached, written in usages:
            counts = genai_prices.Usage(input_tokens=asked, cache_read_tokens=cached, output_tokens=written)
            expected = genai_prices.calc_price(counts, model_ref=model, provider_id=provider).total_price
            usage = Usage(input_tokens=asked, cached_input_tokens=cached, output_tokens=written)
            assert price.cost(usage) == expected, (provider, model, usage)
    assert seen > 200


def test_a_flat_price_is_given_as_rates() -> None:
    """It is cheap to ask; where rates don't tell it all, the table is asked every time."""
    assert isinstance(GenaiPrices().price_of("openai:gpt-4o-mini"), Price)
    assert not isinstance(GenaiPrices().price_of("anthropic:claude-sonnet-4-5"), Price)
    assert not isinstance(GenaiPrices().price_of("deepseek:deepseek-chat"), Price)


def test_without_the_package_no_price_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """The extra is not installed: that is no error until a cost is limited."""
    monkeypatch.setitem(sys.modules, "genai_prices", None)
    assert GenaiPrices().price_of("openai:gpt-4o-mini-2024-07-18") is None
    monkeypatch.undo()
    assert GenaiPrices().price_of("openai/gpt-4o-mini-2024-07-18") is not None
