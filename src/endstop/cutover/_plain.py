"""Any value as plain JSON, with what stands under a secret's name taken out."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, TypeGuard

from langchain_core.messages import BaseMessage
from pydantic import BaseModel, SecretBytes, SecretStr
from pydantic_core import to_jsonable_python

if TYPE_CHECKING:
    from collections.abc import Iterable

    from endstop._messages import JsonObject, JsonValue

REDACTED = "[redacted]"
"""What stands in the place of a secret."""

DEFAULT_REDACTED_KEYS = frozenset(
    {
        *("api_key", "apikey", "api-key", "x-api-key", "api_token", "access_key", "secret_key", "private_key"),
        *("openai_api_key", "anthropic_api_key", "google_api_key", "aws_secret_access_key", "aws_session_token"),
        *("authorization", "proxy-authorization", "cookie", "set-cookie", "credential", "credentials"),
        *("password", "passwd", "passphrase", "pwd", "secret", "client_secret"),
        *("token", "access_token", "refresh_token", "id_token", "auth_token", "bearer_token", "session_token"),
    }
)
"""The names whose values are taken out where nothing else is said: whole names, in upper or lower case."""


class Plain:
    """Makes values plain. `lost` names the classes of those that could not be, since they were last asked for.

    A secret is known by the name it stands under, in objects, lists, and texts that are JSON objects or lists, at any
    depth. No value is ever looked at to guess whether it is one.
    """

    def __init__(self, redacted_keys: Iterable[str]) -> None:
        self._redacted = frozenset(key.casefold() for key in redacted_keys)
        self.lost: list[str] = []

    def value(self, value: object) -> JsonValue:
        """The value as JSON: messages, models and dataclasses as objects of their fields."""
        match value:
            case None | bool() | int() | float():
                return value
            case str():
                return self._text(value)
            case SecretStr() | SecretBytes():
                return REDACTED
            case BaseMessage():
                return self.message(value)
            case BaseModel():
                return self.mapping(dict(value))
            case _ if _is_mapping(value):
                return self.mapping(value)
            case _ if _is_array(value):
                return [self.value(item) for item in value]
            case _ if is_dataclass(value) and not isinstance(value, type):
                return self.mapping({field.name: getattr(value, field.name) for field in fields(value)})
            case _:
                return self._leaf(value)

    def message(self, message: BaseMessage) -> JsonObject:
        """A message as `langchain_core.messages.messages_from_dict` reads it."""
        return {"type": message.type, "data": self.mapping(dict(message))}

    def mapping(self, value: Mapping[object, object]) -> JsonObject:
        """A mapping as a JSON object; an entry whose key is no text is lost."""
        plain: JsonObject = {}
        for key, item in value.items():
            if not isinstance(key, str):
                self.lost.append(f"a key of type {_name(key)}")
            else:
                plain[key] = REDACTED if self._is_secret(key, item) else self.value(item)
        return plain

    def tool(self, value: object) -> JsonValue:
        """The description of a tool: a parameter that is named like a secret is a name there, and no secret."""
        if _is_array(value):
            return [self.tool(item) for item in value]
        if not _is_mapping(value):
            return self.value(value)
        plain: JsonObject = {}
        for key, item in value.items():
            name = str(key)
            if name == "properties" and _is_mapping(item):
                plain[name] = {str(parameter): self.tool(schema) for parameter, schema in item.items()}
            else:
                plain[name] = REDACTED if self._is_secret(name, item) else self.tool(item)
        return plain

    def _is_secret(self, key: str, item: object) -> bool:
        return item is not None and key.casefold() in self._redacted

    def _text(self, text: str) -> str:
        if not text.lstrip().startswith(("{", "[")):
            return text
        try:
            decoded = json.loads(text)
        except (ValueError, RecursionError):
            return text
        clean = self.value(decoded)
        return text if clean == decoded else json.dumps(clean)

    def _leaf(self, value: object) -> JsonValue:
        try:
            plain: JsonValue = to_jsonable_python(value)
        except (ValueError, TypeError):
            self.lost.append(f"a value of type {_name(value)}")
            return {"lost": _name(value)}
        return self.value(plain)


def _name(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _is_mapping(value: object) -> TypeGuard[Mapping[object, object]]:
    return isinstance(value, Mapping)


def _is_array(value: object) -> TypeGuard[list[object] | tuple[object, ...]]:
    return isinstance(value, list | tuple)
