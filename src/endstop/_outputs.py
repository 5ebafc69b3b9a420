"""Structured output: a type, the JSON schema that a model is asked to answer in, and the check of its answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, cast

import pydantic

from endstop._errors import ConfigError
from endstop._results import OutputT, cut_text

if TYPE_CHECKING:
    from endstop._messages import JsonObject

MAX_PROBLEM_CHARS = 2_000
"""The longest complaint about an answer: a long list of wrong items must not fill the conversation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Valid(Generic[OutputT]):
    """An answer that is a value of the output type."""

    output: OutputT


@dataclass(frozen=True, slots=True, kw_only=True)
class Invalid:
    """An answer that is not; `problem` says why, for the model to read."""

    problem: str


class OutputSpec(Generic[OutputT]):
    """The output type of an agent.

    `schema` is `None` for plain text. Providers want an object at the root of a schema, so that a type
    of another shape is asked for and read inside one, under `value`.

    Raises:
        ConfigError: the type has no JSON schema.
    """

    __slots__ = ("_adapter", "_wrapped", "schema")

    def __init__(self, output_type: type[OutputT]) -> None:
        self.schema: JsonObject | None = None
        self._wrapped = False
        self._adapter: pydantic.TypeAdapter[Any] | None = None
        if output_type is str:
            return
        try:
            self._adapter = pydantic.TypeAdapter(output_type)
            schema: JsonObject = self._adapter.json_schema()
            self._wrapped = schema.get("type") != "object"
            if self._wrapped:
                answer = pydantic.create_model("Answer", value=(output_type, ...))
                self._adapter = pydantic.TypeAdapter(answer)
                schema = self._adapter.json_schema()
        except pydantic.errors.PydanticUserError as error:
            raise ConfigError("output_type", output_type, f"use str or a type with a JSON schema ({error})") from error
        self.schema = schema

    def read(self, text: str) -> Valid[OutputT] | Invalid:
        """The value in a model's answer; a Markdown fence around the JSON is taken off."""
        if self._adapter is None:
            return Valid(output=cast("OutputT", text))  # no adapter: the output type is str
        try:
            value = self._adapter.validate_json(_unfenced(text))
            return Valid(output=value.value if self._wrapped else value)
        except pydantic.ValidationError as error:
            problems = [
                f"{'.'.join(map(str, e['loc'])) or 'the answer'}: {e['msg']}" for e in error.errors(include_url=False)
            ]
            return Invalid(problem=cut_text("; ".join(problems), MAX_PROBLEM_CHARS))


def _unfenced(text: str) -> str:
    text = text.strip()
    if text.startswith("```") and text.endswith("```") and "\n" in text:
        return text[text.index("\n") + 1 : -3]
    return text
