"""Where a graph goes next: which node runs with what, read from its edges and asked of its branches."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from langgraph.constants import END, START
from langgraph.errors import InvalidUpdateError, ParentCommand
from langgraph.types import Command, Send

from endstop.cutover._pregel import command_writes, fields_written, invalid_update

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable

    from endstop.cutover._pregel import Write

Builder: TypeAlias = Any
"""A `StateGraph`, whose own types leave their parameters open."""

Ask: TypeAlias = "Callable[[int, Any], Awaitable[object]]"
"""Ask a branch where to go: it is handed the number of the branch among the node's, and the branch."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """One execution of a node that is due. With `sent` it is handed `input`, else what it reads from the state."""

    node: str
    sent: bool = False
    input: object = None


class Roads:
    """The edges and branches of a graph."""

    def __init__(self, builder: Builder) -> None:
        self._branches = builder.branches
        self._nodes: Collection[str] = builder.nodes.keys()
        self._edges: dict[str, list[Visit]] = {}
        for start, end in sorted(builder.edges):
            if end != END:
                self._edges.setdefault(start, []).append(Visit(node=end))

    def edges_from(self, node: str) -> list[Visit]:
        """The nodes that the plain edges of a node lead to."""
        return self._edges.get(node, [])

    def branches_from(self, node: str) -> list[Any]:
        """The branches of a node, in the order in which they are asked."""
        return [*self._branches[node].values()] if node in self._branches else []

    async def after(self, node: str, ask: Ask) -> list[Visit]:
        """The nodes that the edges and branches of a node lead to.

        Raises:
            ValueError: a branch named no node.
            KeyError: a branch named one that it was not declared with.
            InvalidUpdateError: a branch sent something to the end.
        """
        visits = [*self.edges_from(node)]
        for number, branch in enumerate(self.branches_from(node)):
            named = await ask(number, branch)
            targets = [name if isinstance(name, Send) or not branch.ends else branch.ends[name] for name in each(named)]
            if any(target is None or target == START for target in targets):
                raise ValueError("Branch did not return a valid destination")
            if any(isinstance(target, Send) and target.node == END for target in targets):
                raise InvalidUpdateError("Cannot send a packet to the END node")
            visits += _visits(targets)
        return visits

    def merged(self, visits: Iterable[Visit]) -> list[Visit]:
        """The visits of one super-step: each that was sent, and every other node once, in the order of their names.

        One of a node that does not exist is left out, as LangGraph does.
        """
        known: list[Visit] = []
        for visit in visits:
            if visit.node in self._nodes:
                known.append(visit)
            else:
                _log.warning("the graph has no node %s: it is not visited", visit.node)
        names = sorted({visit.node for visit in known if not visit.sent})
        return [visit for visit in known if visit.sent] + [Visit(node=name) for name in names]


def input_writes(builder: Builder, given: dict[str, object]) -> list[Write]:
    """What an input writes to the state."""
    keys: Collection[str] = builder.schemas[builder.input_schema]
    return [(key, value) for key, value in given.items() if key in keys]


def writes_of(builder: Builder, returned: object) -> list[Write]:
    """What a node's return value writes to the state.

    Raises:
        InvalidUpdateError: it is nothing that a node may return.
    """
    if returned is None:
        return []
    whole: Any = returned
    if isinstance(returned, dict):
        updates: Iterable[Write] = whole.items()
    elif isinstance(returned, Command):
        updates = [] if returned.graph == Command.PARENT else command_writes(whole)
    elif any(isinstance(one, Command) for one in each(whole)):
        return [write for one in each(whole) for write in writes_of(builder, one)]
    elif (fields := fields_written(whole, [*builder.channels, *builder.managed])) is not None:
        updates = fields
    else:
        raise invalid_update(whole)
    return [(key, value) for key, value in updates if key in builder.channels or key in builder.managed]


def visits_sent(returned: object) -> list[Visit]:
    """The nodes that a node's return value names itself.

    Raises:
        ParentCommand: it names one of a graph around this one.
    """
    visits: list[Visit] = []
    for command in each(returned):
        if isinstance(command, Command):
            if command.graph == Command.PARENT:
                raise ParentCommand(command)
            visits += _visits(each(cast("Any", command).goto))  # nodes of any names
    return visits


def each(returned: object) -> Iterable[Any]:
    """What a list or tuple holds; anything else on its own."""
    return cast("Iterable[Any]", returned) if isinstance(returned, list | tuple) else (returned,)  # of anything


def _visits(targets: Iterable[Any]) -> list[Visit]:
    return [
        Visit(node=target.node, sent=True, input=target.arg) if isinstance(target, Send) else Visit(node=target)
        for target in targets
        if isinstance(target, Send) or target != END
    ]
