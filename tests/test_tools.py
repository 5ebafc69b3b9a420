"""Tools are plain functions: their hints are the schema, their docstring the description, their result text."""

from __future__ import annotations

import contextvars
import datetime
import functools
import math
import threading
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any, Literal, Optional

import anyio
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from endstop._budget import Budget
from endstop._errors import ConfigError
from endstop._limits import PlanLimits
from endstop._messages import JsonValue
from endstop._tools import MAX_RESULT_CHARS, Tool, ToolContext, from_function, render, tool, toolbox
from tests.strategies import json_objects, json_values

if TYPE_CHECKING:
    from collections import OrderedDict

CONTEXT: ToolContext[object] = ToolContext(
    deps="deps", run_id="r", path=("a",), round=1, call_id="1", tool="t", budget=Budget(PlanLimits())
)


class Colour(Enum):
    """An enumeration."""

    RED = "red"


@dataclass
class Box:
    """A dataclass."""

    width: int
    label: str = ""


class Order(pydantic.BaseModel):
    """A pydantic model."""

    item: str
    count: int = pydantic.Field(default=1, ge=1)


def parameters(function: Any, **options: Any) -> dict[str, Any]:
    """The properties of a tool's schema, without their titles."""
    properties = from_function(function, **options).spec.parameters["properties"]
    return {name: {k: v for k, v in each.items() if k != "title"} for name, each in properties.items()}


async def call(given_tool: Any, arguments: dict[str, JsonValue] | None = None, **options: Any) -> object:
    """What a tool returns for a model's arguments."""
    made = given_tool if isinstance(given_tool, Tool) else from_function(given_tool, **options)
    return await made.body(made.check(arguments or {}), CONTEXT)


# -- the schema ------------------------------------------------------------------------------------


def test_a_function_is_a_tool_by_its_name_hints_and_docstring() -> None:
    """Nothing has to be said twice."""

    def search(query: str, limit: int = 10) -> list[str]:
        """Search the documents.

        Returns file names.
        """
        return [query] * limit

    spec = from_function(search).spec
    assert (spec.name, spec.description) == ("search", "Search the documents.\n\nReturns file names.")
    assert spec.parameters == {
        "type": "object",
        "properties": {
            "query": {"title": "Query", "type": "string"},
            "limit": {"title": "Limit", "type": "integer", "default": 10},
        },
        "required": ["query"],
        "additionalProperties": False,
    }


def test_every_common_hint_has_a_schema() -> None:
    """Optional, literal, described, nested and keyword-only ones."""

    def order(
        size: Literal["s", "m"],
        note: Optional[str] = None,  # noqa: UP045 - the old spelling is a hint as well
        *,
        colour: Colour = Colour.RED,
        price: Annotated[float, pydantic.Field(description="in US dollars", gt=0)],
        day: datetime.date,
        count: int = pydantic.Field(3, description="how many", ge=1),
        tags: tuple[str, ...] = (),
        extra: dict[str, Decimal] | None = None,
    ) -> None:
        """Order."""

    found = parameters(order)
    assert found["size"] == {"enum": ["s", "m"], "type": "string"}
    assert found["note"] == {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None}
    assert found["colour"]["default"] == "red"
    assert found["price"] == {"type": "number", "description": "in US dollars", "exclusiveMinimum": 0}
    assert found["day"] == {"type": "string", "format": "date"}
    assert found["count"] == {"type": "integer", "default": 3, "description": "how many", "minimum": 1}
    assert found["tags"] == {"type": "array", "items": {"type": "string"}, "default": []}
    assert from_function(order).spec.parameters["required"] == ["size", "price", "day"]


def test_a_tool_without_parameters_has_an_empty_schema() -> None:
    """Providers want an object with properties all the same."""

    def now() -> str:
        return "now"

    spec = from_function(now).spec
    assert spec.parameters == {"type": "object", "properties": {}, "additionalProperties": False}
    assert spec.description == ""


def test_a_parameter_without_a_hint_takes_any_json() -> None:
    """The model is told so."""

    def echo(value):
        return value

    assert parameters(echo) == {"value": {"$ref": "#/$defs/JsonValue"}}
    assert from_function(echo).check({"value": [1, {"a": None}]}) == {"value": [1, {"a": None}]}


@given(json_objects)
def test_any_json_reaches_a_parameter_that_takes_it(value: dict[str, JsonValue]) -> None:
    """As it was sent."""

    def echo(value: JsonValue) -> JsonValue:
        return value

    assert ECHO.check({"value": value}) == {"value": value}
    assert from_function(echo).check({"value": 1}) == {"value": 1}


def _echo(value: JsonValue) -> JsonValue:
    return value


ECHO = from_function(_echo)


async def test_arguments_arrive_as_the_types_of_the_hints() -> None:
    """Dataclasses, models, enumerations and dates are made of what the model sent."""

    def pack(box: Box, order: Order, colour: Colour, day: datetime.date, *boxes_left: int) -> None:
        """Never a tool: it has `*args`."""

    with pytest.raises(ConfigError):
        from_function(pack)

    def ship(box: Box, order: Order, colour: Colour, day: datetime.date, pairs: tuple[int, int] = (0, 0)) -> object:
        return (box, order, colour, day, pairs)

    sent: dict[str, JsonValue] = {
        "box": {"width": 3},
        "order": {"item": "nut", "count": "2"},
        "colour": "red",
        "day": "2026-11-30",
        "pairs": [1, 2],
    }
    assert await call(ship, sent) == (
        Box(width=3),
        Order(item="nut", count=2),
        Colour.RED,
        datetime.date(2026, 11, 30),
        (1, 2),
    )


@pytest.mark.parametrize(
    "name", ["_hidden", "self", "function", "arguments", "model_x", "func", "args", "name", "class_"]
)
async def test_a_parameter_may_have_any_name(name: str) -> None:
    """None collides with what the kernel uses itself."""
    scope: dict[str, Any] = {}
    exec(f"def odd({name}: int) -> int:\n    return {name}", scope)
    assert await call(scope["odd"], {name: 3}) == 3


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({}, "query: Missing required keyword only argument"),
        ({"query": 3}, "query: Input should be a valid string"),
        ({"query": "a", "limit": "many"}, "limit: Input should be a valid integer"),
        ({"query": "a", "depth": 1}, "depth: Unexpected keyword argument"),
        ({"query": "a", "box": {"width": "x"}}, "box.width: Input should be a valid integer"),
    ],
)
def test_arguments_that_do_not_fit_are_told_to_the_model(arguments: dict[str, JsonValue], problem: str) -> None:
    """Each with its place; the model can send them again."""

    def search(query: str, limit: int = 10, box: Box | None = None) -> str:
        return query * limit + str(box)

    with pytest.raises(ValueError, match=r"^The arguments do not fit: ") as caught:
        from_function(search).check(arguments)
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    "error", [KeyError("colour"), TypeError("no"), AttributeError("x"), OSError("disk"), RuntimeError("r")]
)
def test_a_type_that_fails_over_a_value_does_not_fit(error: Exception) -> None:
    """Whatever the code of an argument's own type raises is a fault of the value, and no end of the run."""

    def look_up(value: str) -> str:
        raise error

    def paint(colour: str) -> str:
        return colour

    paint.__annotations__["colour"] = Annotated[str, pydantic.AfterValidator(look_up)]
    with pytest.raises(ValueError, match=f"^The arguments do not fit: {type(error).__name__}: "):
        from_function(paint).check({"colour": "blue"})


# -- the context -----------------------------------------------------------------------------------


async def test_the_context_is_given_and_not_shown() -> None:
    """By its annotation, whatever the parameter's name and wherever it stands."""

    def plain(q: str, ctx: ToolContext) -> object:
        return (q, ctx)

    async def typed(ctx: ToolContext[str], q: str) -> object:
        return (q, ctx.deps)

    assert list(parameters(plain)) == list(parameters(typed)) == ["q"]
    assert await call(plain, {"q": "a"}) == ("a", CONTEXT)
    assert await call(typed, {"q": "a"}) == ("a", "deps")


def test_the_model_cannot_send_the_context() -> None:
    """It is no argument."""

    def plain(ctx: ToolContext) -> str:
        return ctx.run_id

    with pytest.raises(ValueError, match="ctx: Unexpected keyword argument"):
        from_function(plain).check({"ctx": {}})


# -- kinds of functions ----------------------------------------------------------------------------


@pytest.mark.both_backends
async def test_a_sync_function_runs_in_a_thread() -> None:
    """It holds nobody up."""

    def where() -> int:
        return threading.get_ident()

    async def here() -> int:
        return threading.get_ident()

    assert await call(where) != threading.get_ident()
    assert await call(here) == threading.get_ident()


VARIABLE: contextvars.ContextVar[str] = contextvars.ContextVar("VARIABLE", default="unset")


@pytest.mark.both_backends
async def test_a_thread_has_the_context_variables_of_the_run() -> None:
    """A request's id, a tenant, an open trace: what was set where the run was started is there."""

    def read() -> str:
        return VARIABLE.get()

    token = VARIABLE.set("set")
    try:
        assert await call(read) == "set"
    finally:
        VARIABLE.reset(token)


class Counter:
    """An object that can be called."""

    def __init__(self, step: int) -> None:
        self.step = step

    def __call__(self, start: int) -> int:
        """Count."""
        return start + self.step

    def method(self, start: int) -> int:
        """Count on."""
        return start + self.step

    @classmethod
    def by_class(cls, start: int) -> int:
        """Count by class."""
        return start + 1

    @staticmethod
    def by_static(start: int) -> int:
        """Count by static."""
        return start + 1


class AsyncCounter(Counter):
    """Count later."""

    async def __call__(self, start: int) -> int:
        """Count."""
        await anyio.lowlevel.checkpoint()
        return start + self.step


@pytest.mark.parametrize(
    ("function", "name", "description"),
    [
        (Counter(1), "count", "An object that can be called."),
        (AsyncCounter(1), "count", "Count later."),
        (Counter(1).method, None, "Count on."),
        (Counter.by_class, None, "Count by class."),
        (Counter.by_static, None, "Count by static."),
        (functools.partial(Counter.by_static), "count", "Count by static."),
        (functools.cache(Counter.by_static), None, "Count by static."),
        (lambda start: start + 1, "count", ""),
    ],
)
async def test_whatever_can_be_called_can_be_a_tool(function: Any, name: str | None, description: str) -> None:
    """Objects, methods, partial and decorated functions; those without a name of their own are given one."""
    made = from_function(function, name=name)
    assert made.spec.description == description
    if "lambda" not in repr(function):
        assert parameters(function, name=name) == {"start": {"type": "integer"}}
    assert await call(made, {"start": 1}) == 2


async def test_what_a_partial_gives_is_neither_asked_for_nor_shown() -> None:
    """A key that the program gives must not go to the model's provider, nor be the model's to change."""

    def fetch(tenant: str, url: str, *, key: str = "none", tries: int = 1) -> str:
        """Fetch a page."""
        return f"{tenant} {url} {key} {tries}"

    made = from_function(functools.partial(fetch, "me", key="secret"), name="fetch")
    assert list(made.spec.parameters["properties"]) == ["url", "tries"]
    assert "secret" not in str(made.spec)
    assert made.spec.description == "Fetch a page."
    assert await call(made, {"url": "u", "tries": 2}) == "me u secret 2"
    with pytest.raises(ValueError, match="key: Unexpected keyword argument"):
        made.check({"url": "u", "key": "mine"})


async def test_a_class_can_be_a_tool() -> None:
    """Its fields are the parameters."""
    made = from_function(Box)
    assert parameters(Box) == {"width": {"type": "integer"}, "label": {"type": "string", "default": ""}}
    assert await call(made, {"width": 3}) == Box(width=3)


async def test_a_sync_function_may_return_something_to_wait_for() -> None:
    """Such as a decorated coroutine function, which does not look like one."""

    async def later(x: int) -> int:
        await anyio.lowlevel.checkpoint()
        return x

    def decorated(x: int) -> object:
        return later(x)

    assert await call(decorated, {"x": 3}) == 3


# -- what is refused -------------------------------------------------------------------------------


def positional(x: int, /) -> int:
    """One that cannot be called by name."""
    return x


def starred(*xs: int) -> int:
    """One that takes any number."""
    return sum(xs)


def double_starred(**xs: int) -> int:
    """One that takes any name."""
    return sum(xs.values())


@pytest.mark.parametrize("function", [positional, starred, double_starred, len])
def test_a_parameter_without_a_name_of_its_own_is_refused(function: Any) -> None:
    """A model sends arguments by name."""
    with pytest.raises(ConfigError, match="use named parameters only") as caught:
        from_function(function)
    assert caught.value.field == f"tool '{function.__name__}'"


@pytest.mark.parametrize("function", [lambda x: x, functools.partial(starred), Counter(1)])
def test_a_function_without_a_name_is_refused(function: Any) -> None:
    """It says how to give one."""
    with pytest.raises(ConfigError, match=r"give the tool a name: @tool\(name='...'\)"):
        from_function(function)


def unknown_name(x: Nowhere) -> None:  # noqa: F821 - that there is no such name is what is tested
    """A hint that does not exist."""


def imported_for_types_only(x: OrderedDict[str, int]) -> None:
    """A hint that exists for type checkers alone."""


def unknown_attribute(x: datetime.nowhere) -> None:
    """A hint that its module does not have."""


def no_expression(x: "int |") -> None:  # noqa: F722 - that it is no Python is what is tested
    """A hint that is no Python."""


def no_union(x: "int | 'str'") -> None:  # noqa: UP037 - that it is text is what is tested
    """A hint that is no type."""


@pytest.mark.parametrize(
    "function", [unknown_name, imported_for_types_only, unknown_attribute, no_expression, no_union, max]
)
def test_hints_that_cannot_be_read_are_refused(function: Any) -> None:
    """When the tool is made, by its name, whatever Python makes of them."""
    with pytest.raises(ConfigError, match="make its signature and type hints resolvable") as caught:
        from_function(function)
    assert caught.value.field == f"tool '{function.__name__}'"


@pytest.mark.parametrize("hint", [threading.Thread, type, contextvars.Context])
def test_a_hint_without_a_json_form_is_refused(hint: Any) -> None:
    """No model could send such a value."""

    def start(thread: Any) -> None:
        """Start."""

    start.__annotations__["thread"] = hint
    with pytest.raises(ConfigError, match="give every parameter a type with a JSON form"):
        from_function(start)


@pytest.mark.parametrize(
    "options",
    [
        {"timeout_seconds": -1},
        {"timeout_seconds": math.nan},
        {"timeout_seconds": True},
        {"retries": -1},
        {"retries": 1.5},
        {"retries": None},
        {"max_result_chars": 0},
        {"max_result_chars": None},
    ],
)
def test_an_option_that_cannot_be_used_is_refused_by_name(options: dict[str, Any]) -> None:
    """When the tool is made."""
    with pytest.raises(ConfigError) as caught:
        tool(**options)(starless)
    assert caught.value.field in options


def starless() -> str:
    """A good function."""
    return "good"


# -- making and collecting -------------------------------------------------------------------------


def test_the_decorator_takes_options_or_none() -> None:
    """Both forms make the same tool but for what they are told."""
    plain = tool(starless)
    assert (plain.name, plain.spec.description, plain.read_only) == ("starless", "A good function.", False)
    named = tool(
        name="star",
        description="Shine.",
        read_only=True,
        timeout_seconds=2,
        retries=1,
        max_result_chars=100,
        requires_approval=True,
        polling=True,
        repeatable=True,
    )(starless)
    assert (named.name, named.spec.description) == ("star", "Shine.")
    assert (named.read_only, named.timeout_seconds, named.retries, named.max_result_chars) == (True, 2, 1, 100)
    assert (named.requires_approval, named.polling, named.repeatable) == (True, True, True)
    assert tool()(starless).spec == plain.spec


def test_tools_are_collected_by_name_in_order() -> None:
    """Functions and tools may be mixed."""
    made = tool(name="second")(starless)
    box = toolbox([starless, made])
    assert list(box) == ["starless", "second"]
    assert box["second"] is made
    assert toolbox([]) == {}


def test_two_tools_of_one_name_are_refused() -> None:
    """The model could not tell them apart."""
    with pytest.raises(ConfigError, match="give each tool a name of its own") as caught:
        toolbox([starless, tool(starless)])
    assert (caught.value.field, caught.value.value) == ("tools", "starless")


@pytest.mark.parametrize("given_tools", [[3], ["starless"], [None], "ab"])
def test_what_cannot_be_called_is_no_tool(given_tools: Any) -> None:
    """Names of tools are no tools."""
    with pytest.raises(ConfigError, match="use functions with type hints, or Tool objects"):
        toolbox(given_tools)


# -- results ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("as it is", "as it is"),
        ("", ""),
        (None, "(no result)"),
        (3, "3"),
        (True, "true"),
        (["é", 1.5, None], '["é",1.5,null]'),
        (Box(width=1), '{"width":1,"label":""}'),
        (Order(item="nut"), '{"item":"nut","count":1}'),
        ({"at": datetime.date(2026, 11, 30), "price": Decimal("0.10")}, '{"at":"2026-11-30","price":"0.10"}'),
        ([math.nan, math.inf], '["NaN","Infinity"]'),
        (b"\x00\xff", '"AP8="'),
        ((n for n in range(3)), "[0,1,2]"),
        (Colour.RED, '"red"'),
    ],
)
def test_a_result_is_text_or_json(value: object, text: str) -> None:
    """Text goes to the model as it is, anything else as JSON that any reader takes."""
    assert render(value) == text


@given(json_values)
def test_json_is_rendered_as_itself(value: JsonValue) -> None:
    """A model can read back what the tool gave."""
    if isinstance(value, str) or value is None:
        return
    assert pydantic.TypeAdapter(object).validate_json(render(value, 10**9)) == value


def test_lone_surrogates_in_a_result_are_replaced() -> None:
    """File names bring them, in text and inside data; the rest of the data stays."""
    assert render("a\udcff") == "a?"
    assert render({"name": ["a\udcff", 1, b"\xff", math.inf]}) == '{"name":["a?",1,"_w==","Infinity"]}'


@given(st.text("ab", max_size=200), st.integers(1, 100))
def test_a_long_result_is_cut_and_its_length_said(text: str, most: int) -> None:
    """The model knows that there is more, and how much."""
    shown = render(text, most)
    if len(text) <= most:
        assert shown == text
    else:
        assert shown == f"{text[:most]}\n[cut: the first {most} of {len(text)} characters are shown]"


def test_results_are_cut_by_default() -> None:
    """A tool that returns a whole file does not fill the context."""
    assert len(render("x" * 10**6)) < MAX_RESULT_CHARS + 100
    assert render(["x" * 10**6]).endswith(f"of {10**6 + 4} characters are shown]")
