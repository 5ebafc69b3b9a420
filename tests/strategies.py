"""Random records of every kind that is stored: each field is drawn by its type hint, so that none can be forgotten."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from hypothesis import strategies as st

from endstop._limits import PlanLimits, Price
from endstop._messages import FilePart, ImagePart, JsonValue, Message, ModelTurn, ToolReturn, UserMessage
from endstop._state import RunState

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

T = TypeVar("T")

texts = st.text(max_size=20) | st.sampled_from(["", "\x00", "é", "日本語", "\U0001f600", "\u2028", '"\\', "x" * 300])
floats = st.floats(allow_nan=False, allow_infinity=False)
numbers = st.integers() | st.integers(10**30, 10**300) | floats
json_values = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
json_objects = st.dictionaries(texts, json_values, max_size=4)
counts = st.integers(0, 10**12)
money = st.decimals(0, 1_000, allow_nan=False) | st.sampled_from([Decimal("0.10"), Decimal("1E+3"), Decimal("1E-30")])
seconds = st.floats(0, 1e9)
times = st.datetimes(datetime(1990, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC))

_PLAIN: dict[object, SearchStrategy[Any]] = {
    bool: st.booleans(),
    int: counts,
    float: floats,
    str: texts,
    bytes: st.binary(max_size=64),
    Decimal: money,
    datetime: times,
    type(None): st.none(),
    JsonValue: json_values,
    object: json_values,
}

prices = st.builds(
    Price,
    input_per_million=money,
    output_per_million=money,
    cached_input_per_million=st.none() | money,
    source=texts,
)

_LIMITS: dict[str, SearchStrategy[Any]] = {
    "max_cost": st.none() | money | seconds | counts,
    "max_seconds": st.none() | seconds | counts,
    "answer_seconds": st.none() | seconds,
    "warn_at": st.none() | st.floats(0, 1, exclude_min=True),
    "assume_price": st.none() | prices,
}
"""The fields of `PlanLimits` that do not take every value of their type."""


def _one_source(part: type[T], **fields: SearchStrategy[object]) -> SearchStrategy[T]:
    """A part with either an address or bytes."""
    by_url = st.builds(part, url=texts, media_type=texts, **fields)
    return by_url | st.builds(part, data=st.binary(max_size=64), media_type=texts, **fields)


@cache
def records(cls: type[T], depth: int = 1) -> SearchStrategy[T]:
    """Any record of the class, every field drawn. Records that contain their own kind do so `depth` times."""
    if cls is ImagePart:
        return _one_source(cls)
    if cls is FilePart:
        return _one_source(cls, name=texts)
    if cls is Price:
        return prices
    hints = get_type_hints(cls)
    drawn = {field.name: _of(hints[field.name], depth) for field in dataclasses.fields(cls)}
    return st.builds(cls, **{**drawn, **(_LIMITS if cls is PlanLimits else {})})


def _of(hint: object, depth: int) -> SearchStrategy[Any]:
    """Any value of a type."""
    if hint in _PLAIN:
        return _PLAIN[hint]
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal:
        return st.sampled_from(arguments)
    if origin in (Union, types.UnionType):
        return st.one_of(*(_of(argument, depth) for argument in arguments))
    if origin is tuple:
        return st.lists(_of(arguments[0], depth), max_size=3).map(tuple)
    if origin is list:
        return st.lists(_of(arguments[0], depth), max_size=3)
    if origin in (dict, Mapping):
        if arguments[1] is RunState and not depth:
            return st.just({})
        return st.dictionaries(_of(arguments[0], depth), _of(arguments[1], depth - 1), max_size=2)
    if origin is typing.Annotated:
        return _of(arguments[0], depth)
    assert isinstance(hint, type), hint
    return records(hint, depth)


messages: SearchStrategy[Message] = st.one_of(records(UserMessage), records(ModelTurn), records(ToolReturn))
histories = st.lists(messages, max_size=6)
states = records(RunState)
