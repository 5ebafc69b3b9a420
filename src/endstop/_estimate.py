"""How many tokens a request will be, before the provider says how many it was."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from endstop._messages import Message, ModelTurn, TextPart, ToolReturn, ToolSpec

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

BYTES_PER_TOKEN = 3.5
"""UTF-8 bytes a token. Common tokenizers give about 4 for English, 3 for code and for other scripts."""

MESSAGE_TOKENS = 4
"""What the frame of one message costs in common chat formats."""

ATTACHMENT_TOKENS = 1_000
"""What an image or a file is taken for: providers charge from about 85 to 1,700 for an image."""


class ContextSize:
    """The input tokens of the next request of one conversation, whose requests carry a frame beside it.

    What the provider measured for the newest turn is taken as it is; only what was added since is
    estimated. The first `earlier` messages are of another conversation: what was measured there was
    measured with another frame, so that they are estimated. Each message is looked at once, so the
    cost a round does not grow with the history.
    """

    __slots__ = ("_counted", "_earlier", "_tokens")

    def __init__(self, frame_tokens: int, earlier: int = 0) -> None:
        self._counted = 0
        self._earlier = earlier
        self._tokens = frame_tokens

    def of(self, messages: Sequence[Message]) -> int:
        """The estimate for the conversation, which has only grown since it was last asked for."""
        for index, message in enumerate(messages[self._counted :], self._counted):
            usage = message.usage if isinstance(message, ModelTurn) and index >= self._earlier else None
            if usage is not None and usage.measured:
                self._tokens = usage.input_tokens + usage.output_tokens
            else:
                self._tokens += message_tokens(message)
        self._counted = len(messages)
        return self._tokens


def frame_tokens(instructions: str | None, tools: Iterable[ToolSpec]) -> int:
    """The estimated tokens of what every request carries beside the conversation."""
    frame = text_tokens(instructions or "")
    return frame + sum(text_tokens(tool.name + tool.description + json.dumps(tool.parameters)) for tool in tools)


def message_tokens(message: Message) -> int:
    """The estimated tokens of one message."""
    if isinstance(message, ToolReturn):
        return MESSAGE_TOKENS + text_tokens(message.content)
    if isinstance(message, ModelTurn):
        return MESSAGE_TOKENS + turn_tokens(message)
    if isinstance(message.content, str):
        return MESSAGE_TOKENS + text_tokens(message.content)
    parts = (text_tokens(p.text) if isinstance(p, TextPart) else ATTACHMENT_TOKENS for p in message.content)
    return MESSAGE_TOKENS + sum(parts)


def turn_tokens(turn: ModelTurn) -> int:
    """The estimated output tokens of a model's turn."""
    # Arguments that are no JSON object were written and billed as well.
    written = (call.name + (call.invalid_arguments or json.dumps(call.arguments)) for call in turn.tool_calls)
    calls = sum(text_tokens(call) + MESSAGE_TOKENS for call in written)
    return text_tokens(turn.text) + text_tokens(turn.thinking) + calls


def text_tokens(text: str) -> int:
    """The estimated tokens of a text; 0 for none."""
    size = len(text) if text.isascii() else len(text.encode("utf-8", "replace"))
    return int(size / BYTES_PER_TOKEN) + 1 if size else 0
