"""Structured output: what a model is asked for, and what is taken for an answer."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Generic, Literal, TypeVar

import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typing_extensions import TypedDict

from endstop._errors import ConfigError
from endstop._outputs import MAX_PROBLEM_CHARS, Invalid, OutputSpec, Valid
from tests.strategies import json_values

T = TypeVar("T")


class Colour(Enum):
    """An enumeration."""

    RED = "red"


@dataclass
class Point:
    """A dataclass."""

    x: int
    y: int = 0


class Node(pydantic.BaseModel):
    """A model that contains its own kind."""

    name: str
    kids: list[Node] = []


class Pair(pydantic.BaseModel, Generic[T]):
    """A generic model."""

    first: T
    second: T


class Exact(pydantic.BaseModel):
    """A model that takes no value of another type."""

    model_config = pydantic.ConfigDict(strict=True)

    day: datetime.date
    sides: tuple[int, ...]


class Cat(pydantic.BaseModel):
    """One of a union."""

    kind: Literal["cat"]
    lives: int


class Dog(pydantic.BaseModel):
    """The other of a union."""

    kind: Literal["dog"]
    tricks: list[str] = []


Pet = Annotated[Cat | Dog, pydantic.Field(discriminator="kind")]


class Unresolved(pydantic.BaseModel):
    """A model whose field has a type that does not exist."""

    field: Nowhere  # noqa: F821 - that there is no such name is what is tested


DAY, LEAF = datetime.date(2026, 11, 30), Node(name="a")

ANSWERS: list[tuple[Any, str, object]] = [
    (int, '{"value": 3}', 3),
    (bool, '{"value": true}', True),
    (float, '{"value": 1}', 1.0),
    (Decimal, '{"value": "0.10"}', Decimal("0.10")),
    (list[int], '{"value": [1, 2]}', [1, 2]),
    (tuple[int, str], '{"value": [1, "a"]}', (1, "a")),
    (set[str], '{"value": ["a", "a"]}', {"a"}),
    (Literal["yes", "no"], '{"value": "no"}', "no"),
    (int | None, '{"value": null}', None),
    (int | str, '{"value": "3"}', "3"),
    (Colour, '{"value": "red"}', Colour.RED),
    (datetime.date, '{"value": "2026-11-30"}', DAY),
    (dict[str, int], '{"a": 1}', {"a": 1}),
    (Point, '{"x": 1}', Point(x=1)),
    (list[Point], '{"value": [{"x": 1, "y": 2}]}', [Point(x=1, y=2)]),
    (Point | None, '{"value": {"x": 1}}', Point(x=1)),
    (Node, '{"value": {"name": "a", "kids": [{"name": "b"}]}}', Node(name="a", kids=[Node(name="b")])),
    (list[Node], '{"value": [{"name": "a"}]}', [Node(name="a")]),
    (Pair[int], '{"first": 1, "second": 2}', Pair[int](first=1, second=2)),
    (Pair[Node], '{"first": {"name": "a"}, "second": {"name": "a"}}', Pair[Node](first=LEAF, second=LEAF)),
    (Pet, '{"value": {"kind": "cat", "lives": 9}}', Cat(kind="cat", lives=9)),
    (list[Pet], '{"value": [{"kind": "dog"}]}', [Dog(kind="dog")]),
    (Exact, '{"day": "2026-11-30", "sides": [1]}', Exact(day=DAY, sides=(1,))),
    (list[Exact], '{"value": [{"day": "2026-11-30", "sides": []}]}', [Exact(day=DAY, sides=())]),
    (TypedDict("Row", {"id": int}), '{"id": 1}', {"id": 1}),
    (Any, '{"value": [null]}', [None]),
]


@pytest.mark.parametrize(("output_type", "answer", "output"), ANSWERS, ids=[str(each[0]) for each in ANSWERS])
def test_an_answer_of_the_form_asked_for_is_the_value(output_type: Any, answer: str, output: object) -> None:
    """Every type with a JSON form, in the object that its schema describes."""
    spec: OutputSpec[object] = OutputSpec(output_type)
    assert spec.read(answer) == Valid(output=output)
    assert type(spec.read(answer).output) is type(output)
    for key in json.loads(answer):
        assert key in spec.schema.get("properties", {}) or "additionalProperties" in spec.schema


@pytest.mark.parametrize("output_type", [each[0] for each in ANSWERS], ids=str)
def test_the_root_of_a_schema_is_an_object(output_type: Any) -> None:
    """Providers demand one; and every reference in it leads to a definition at its root."""
    schema = OutputSpec(output_type).schema
    assert schema["type"] == "object"
    text = json.dumps(schema)
    referenced = {part.partition('"')[0] for part in text.split('"#/$defs/')[1:]}
    assert referenced <= schema.get("$defs", {}).keys()
    assert text.count('"$defs"') <= 1


def test_plain_text_has_no_schema_and_is_always_valid() -> None:
    """An agent of text takes what the model says, untouched."""
    spec = OutputSpec(str)
    assert spec.schema is None
    for text in ("", " a\n", "```\nx\n```", "{}"):
        assert spec.read(text) == Valid(output=text)


@pytest.mark.parametrize(
    "answer",
    [
        '{"value": 3}',
        ' \n{"value": 3}\n ',
        '```json\n{"value": 3}\n```',
        '```\n{"value": 3}```',
        '\n```JSON\n\n{"value": 3}\n\n```\n',
        '```json\r\n{"value": 3}\r\n```',
    ],
)
def test_a_fence_around_the_answer_is_taken_off(answer: str) -> None:
    """Models of text put one there."""
    assert OutputSpec(int).read(answer) == Valid(output=3)


@pytest.mark.parametrize(
    ("output_type", "answer", "problem"),
    [
        (int, "", "the answer: Invalid JSON"),
        (int, "3", "the answer: Input should be an object"),
        (int, "It is 3.", "the answer: Invalid JSON"),
        (int, "```", "the answer: Invalid JSON"),
        (int, "``````", "the answer: Invalid JSON"),
        (int, '```json\n{"value": 3}', "the answer: Invalid JSON"),
        (int, "{}", "value: Field required"),
        (int, '{"value": "x"}', "value: Input should be a valid integer"),
        (int, '{"value": ' + "[" * 5_000, "the answer: Invalid JSON: recursion limit exceeded"),
        (Point, '{"y": 1}', "x: Field required"),
        (Point, "null", "the answer: Input should be an object"),
        (list[Point], '{"value": [{"x": 1}, {"x": "b"}]}', "value.1.x: Input should be a valid integer"),
        (Pet, '{"value": {"kind": "cow"}}', "value: Input tag 'cow'"),
        (Literal["yes", "no"], '{"value": "maybe"}', "value: Input should be 'yes' or 'no'"),
        (dict[str, str], '{"a": "\\ud800"}', "the answer: Invalid JSON"),
        (dict[str, str], '{"a": "\ud800"}', "the answer: "),
    ],
)
def test_an_answer_of_another_form_is_a_problem_to_tell_the_model(output_type: Any, answer: str, problem: str) -> None:
    """It names the place as the schema does, and what would be right."""
    read = OutputSpec(output_type).read(answer)
    assert isinstance(read, Invalid)
    assert read.problem.startswith(problem)
    assert "pydantic" not in read.problem


def test_every_problem_is_told() -> None:
    """One repair round can mend them all."""
    read = OutputSpec(Point).read('{"x": "a", "y": "b"}')
    assert isinstance(read, Invalid)
    assert [line.partition(":")[0] for line in read.problem.split("; ")] == ["x", "y"]


def test_a_long_list_of_problems_does_not_fill_the_conversation() -> None:
    """The first of them are told, and that there are more."""
    read = OutputSpec(list[int]).read(json.dumps({"value": ["x"] * 10_000}))
    assert isinstance(read, Invalid)
    assert read.problem.startswith("value.0: Input should be a valid integer")
    assert len(read.problem) < MAX_PROBLEM_CHARS + 100
    assert "[cut: " in read.problem


@given(st.text(st.characters()) | json_values.map(json.dumps))
def test_reading_an_answer_never_raises(text: str) -> None:
    """Whatever a model writes, it is an answer or a problem."""
    for output_type in (int, list[str], Point, Node, Pet):
        read = OutputSpec(output_type).read(text)
        assert isinstance(read, Valid) or read.problem


@pytest.mark.parametrize("output_type", [3, "text", Callable[[int], int], type, object(), list[object()], Unresolved])
def test_a_type_without_a_json_schema_is_refused(output_type: Any) -> None:
    """When the agent is made, not when the model has answered."""
    with pytest.raises(ConfigError, match="use str or a type with a JSON schema") as caught:
        OutputSpec(output_type)
    assert caught.value.field == "output_type"
    assert caught.value.value is output_type
