"""The state of an agent's graph while its turn runs on the kernel: the graph's own channels, with their reducers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from langgraph.channels import BinaryOperatorAggregate, LastValue
from langgraph.errors import EmptyChannelError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from langgraph.channels.base import BaseChannel

    from endstop.cutover._pregel import Scratch, Write

Channel: TypeAlias = "BaseChannel[Any, Any, Any]"

_LASTING = (LastValue, BinaryOperatorAggregate)
"""The channels that keep what they hold while nothing is written to them; others are told of every super-step."""


class GraphState:
    """The values of a graph's state keys."""

    def __init__(self, channels: Mapping[str, Channel], managed: Mapping[str, Any]) -> None:
        self.channels = dict(channels)
        self._managed = managed

    def apply(self, writes: Iterable[Write]) -> None:
        """Take the writes of one super-step, in order; keys that live for one step only are emptied."""
        self.channels = self.with_writes(writes).channels

    def read(self, keys: Iterable[str], scratch: Scratch) -> dict[str, object]:
        """The values of these keys, as far as they have any."""
        values: dict[str, object] = {}
        for key in keys:
            if (channel := self.channels.get(key)) is not None:
                try:
                    values[key] = channel.get()
                except EmptyChannelError:
                    continue
            elif key in self._managed:
                values[key] = self._managed[key].get(scratch)
        return values

    def with_writes(self, writes: Iterable[Write]) -> GraphState:
        """The state as it would be with these writes; this one stays as it is."""
        by_key: dict[str, list[object]] = {}
        for key, value in writes:
            by_key.setdefault(key, []).append(value)
        after: dict[str, Channel] = {}
        for key, channel in self.channels.items():
            written: Sequence[object] = by_key.get(key, ())
            if written or not isinstance(channel, _LASTING):
                channel = channel.copy()
                channel.update(written)
            after[key] = channel
        return GraphState(after, self._managed)
