"""What a graph says of itself: the bounds that its own code keeps, so that nobody who audits it has to know them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar, cast
from weakref import WeakKeyDictionary

from langgraph.pregel import Pregel

from endstop._errors import ConfigError
from endstop._limits import checked_counts
from endstop.langgraph._compat import built_from

if TYPE_CHECKING:
    from typing import Any

GraphT = TypeVar("GraphT", bound="Pregel[Any, Any, Any, Any]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Guards:
    """Bounds that a graph's own code keeps: `caps` and `fan_out`, as `audit` takes them."""

    caps: Mapping[str, int] = field(default_factory=dict[str, int])
    fan_out: Mapping[str, int] = field(default_factory=dict[str, int])


# By what a graph was compiled from: `with_config` and `bound` make new graphs of the same.
_declared: WeakKeyDictionary[object, Guards] = WeakKeyDictionary()


def guarded(
    graph: GraphT, *, caps: Mapping[str, int] | None = None, fan_out: Mapping[str, int] | None = None
) -> GraphT:
    """The same graph, with the bounds that its own code keeps noted beside it for every audit of it.

    `caps` and `fan_out` are as `audit` takes them; what an audit is given itself goes before. Nothing of the graph
    changes, and nothing is enforced: the numbers are a promise of the code that keeps them.

    Raises:
        ConfigError: it is no compiled graph, or a value is no whole number, 0 or more. The audit looks names up.
    """
    if not isinstance(cast("object", graph), Pregel):  # callers are not all type-checked
        raise ConfigError("graph", graph, "give a compiled graph: of StateGraph, create_agent or @entrypoint")
    _declared[built_from(graph)] = Guards(
        caps=checked_counts("caps", caps or {}, of="nodes and edges"),
        fan_out=checked_counts("fan_out", fan_out or {}, of="nodes"),
    )
    return graph


def guards_of(graph: object) -> Guards:
    """What was noted of a graph; nothing where nothing was."""
    return _declared.get(built_from(graph), Guards())
