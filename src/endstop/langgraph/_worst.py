"""The most that a run of a graph can take, when caps bound its loops.

A cap bounds one run: how often a node runs, or how often an edge is taken, all loops together. Where it is used up the
step is not taken. Tasks that a router starts at once, a fan-out, count once for the cap and once for the recursion
limit; each of them is a node execution.

Two ways lead to the number. The *formula* gives every node a potential: the work that follows from it while no capped
step is taken. A capped step can raise the potential of what runs by a fixed amount, its gain, and nothing else raises
it; so all work is at most the potential of the start and, for each cap, its gain times the cap. The *search* tries all
ways through the graph, which is exact, and is given up where they are too many.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from endstop.langgraph._audits import Worst, WorstCase
from endstop.langgraph._cycles import loops_of, order_of
from endstop.langgraph._graph_map import END, START
from endstop.langgraph._wiring import Wiring, arrivals, wiring

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from endstop.langgraph._graph_map import GraphMap

_MOST_MOVES = 50_000
"""Steps that the search looks at before it is given up: a fraction of a second."""


def worst_case(graph: GraphMap, caps: Mapping[str, int], fan_out: Mapping[str, int]) -> WorstCase | None:
    """The most node executions and super-steps of one run; `None` where a cycle that a run can reach has no cap.

    `caps` are by node or `source->target`; `fan_out` is the most tasks of a node in one super-step, else 1.
    """
    wired = wiring(graph)
    if any(loop & arrivals(wired, START).keys() for loop in loops_of(wired, caps)):
        return None
    tasks = _Potentials(wired, caps, fan_out, longest=False)
    # What is deferred waits for nodes that do not lead to it, so that no chain of nodes tells the super-steps.
    steps = _Potentials(wired, caps, {}, longest=not wired.deferred)
    found = _Search(wired, caps, fan_out).most()
    return WorstCase(
        node_executions=tasks.worst(None if found is None else found[0]),
        super_steps=steps.worst(None if found is None else found[1]),
    )


# --- the formula ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Work:
    """A number of node executions, and the runs among them of nodes that fan out, by node."""

    size: int = 0
    fanned: Mapping[str, int] = field(default_factory=dict[str, int])

    def plus(self, other: _Work, sign: int = 1) -> _Work:
        runs = dict(self.fanned)
        for name, count in other.fanned.items():
            runs[name] = runs.get(name, 0) + sign * count
        return _Work(self.size + sign * other.size, {name: count for name, count in runs.items() if count})

    def text(self, fan_out: Mapping[str, int]) -> str:
        plain = self.size - sum(count * fan_out[name] for name, count in self.fanned.items())
        terms = [str(plain)] if plain else []
        terms += (f"{'' if count == 1 else f'{count} * '}fan_out[{name}]" for name, count in self.fanned.items())
        return " + ".join(terms)


_NONE = _Work()


class _Potentials:
    """The work that follows from each node, itself included, while no capped step is taken.

    With `longest` it is that of the longest chain; without, of all nodes that one leads to, those in parallel added up.
    """

    def __init__(self, wired: Wiring, caps: Mapping[str, int], fan_out: Mapping[str, int], *, longest: bool) -> None:
        self._wired = wired
        self._caps = caps
        self._fan_out = fan_out
        self._longest = longest
        self._of = {END: _NONE}
        self._after: dict[str, _Work] = {}
        reached = {START, END, *arrivals(wired, START)}
        for name in reversed(order_of(wired, caps, reached)):
            groups = [self._best(name, group) for group in self._groups(name)]
            self._after[name] = _largest(groups) if longest else _sum(groups)
            own = _Work(fan_out[name], {name: 1}) if name in fan_out else _Work(1)
            self._of[name] = self._after[name] if name in (START, END) else self._after[name].plus(own)

    def worst(self, found: int | None) -> Worst:
        """The worst case: what the search has found, or else what the formula comes to."""
        gains: dict[str, _Work] = {}
        for name in self._after:
            for group in self._groups(name):
                for target in group:
                    if (cap := self._cap(name, target)) is not None:
                        gains[cap] = _largest([gains.get(cap, _NONE), self._gain(name, group, target)])
        base = self._of[START]
        terms = [base.text(self._fan_out)] if base.size else []
        bound = base.size
        for cap, most in self._caps.items():
            gain = gains.get(cap, _NONE)
            bound += gain.size * most
            if gain.size:
                text = gain.text(self._fan_out)
                times = "" if text == "1" else f"({text}) * " if " + " in text else f"{text} * "
                terms.append(f"{times}caps[{cap}]")
        number = bound if found is None else found
        return Worst(number=number, exact=found is not None, formula=" + ".join(terms) or "0", formula_number=bound)

    def _groups(self, name: str) -> Iterator[tuple[str, ...]]:
        yield from self._wired.groups(name)
        for sources, target in self._wired.joins:
            # A join runs at most as often as any one of its sources, so one of them answers for all its work.
            if name == sources[0] or (self._longest and name in sources):
                yield (target,)

    def _follows(self, target: str) -> _Work:
        """The potential of a node: none where no run gets there, as with a join that one source never comes to."""
        return self._of.get(target, _NONE)

    def _cap(self, name: str, target: str) -> str | None:
        return next((cap for cap in (target, f"{name}->{target}") if cap in self._caps), None)

    def _best(self, name: str, group: tuple[str, ...]) -> _Work:
        """The most that follows from a group by steps that are not capped."""
        free = [target for target in group if self._cap(name, target) is None]
        if self._longest:
            return _largest([self._follows(target) for target in free])
        together = _sum([self._follows(target) for target in free if target in self._fan_out])
        alone = (self._follows(target) for target in free if target not in self._fan_out)
        ranked = sorted(alone, key=_size, reverse=True)
        tasks = self._fan_out.get(name, 1)
        return _largest([together, *ranked[:1]]) if tasks == 1 else _sum([together, *ranked[:tasks]])

    def _gain(self, name: str, group: tuple[str, ...], target: str) -> _Work:
        """By how much the capped step raises the potential: all of the target's, less that of what it stands for."""
        replaced = _NONE
        if self._longest:
            replaced = self._after[name]
        elif self._fan_out.get(name, 1) == 1 and target not in self._fan_out:
            replaced = self._best(name, group)
        gain = self._follows(target).plus(replaced, -1)
        return gain if gain.size > 0 else _NONE


def _size(work: _Work) -> int:
    return work.size


def _largest(works: Iterable[_Work]) -> _Work:
    return max(works, key=_size, default=_NONE)


def _sum(works: Iterable[_Work]) -> _Work:
    total = _NONE
    for work in works:
        total = total.plus(work)
    return total


# --- the search ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Moment:
    """A run between two super-steps: what runs next, what waits for others, and what is left of the caps."""

    active: frozenset[str]
    waiting: frozenset[tuple[str, int]]
    left: tuple[int, ...]


_Step: TypeAlias = tuple[str, str]
"""An edge taken: its source and its target."""

_DEFERRED = -1
"""Marks what waits for all else to end, where others wait for the sources of a numbered join."""

Item = TypeVar("Item")


class _TooManyWays(Exception):
    """The graph has more ways through it than the search may try."""


class _Search:
    """Tries all ways through a graph whose loops are all capped."""

    def __init__(self, wired: Wiring, caps: Mapping[str, int], fan_out: Mapping[str, int]) -> None:
        self._wired = wired
        self._caps = caps
        self._fan_out = fan_out
        self._moves = 0

    def most(self) -> tuple[int, int] | None:
        """The most node executions and the most super-steps of a run; `None` where there are too many ways."""
        best: dict[_Moment, tuple[int, int]] = {}
        following: dict[_Moment, tuple[_Moment, ...]] = {}
        start = _Moment(frozenset({START}), frozenset(), tuple(self._caps.values()))
        stack = [start]
        try:
            while stack:
                moment = stack[-1]
                if moment not in following:
                    following[moment] = tuple(dict.fromkeys(self._after(moment)))
                open_ones = [after for after in following[moment] if after not in best]
                if open_ones and moment not in best:
                    stack += open_ones
                    continue
                stack.pop()
                tasks = max((self._tasks(after) + best[after][0] for after in following[moment]), default=0)
                steps = max((1 + best[after][1] for after in following[moment]), default=0)
                best[moment] = (tasks, steps)
        except _TooManyWays:
            return None
        return best[start]

    def _tasks(self, moment: _Moment) -> int:
        return sum(self._fan_out.get(name, 1) for name in moment.active)

    def _after(self, moment: _Moment) -> Iterator[_Moment]:
        """What may run next, for each way in which the nodes that run may choose."""
        left = dict(zip(self._caps, moment.left, strict=True))
        groups = [(name, group) for name in moment.active for group in self._wired.groups(name)]
        options = [list(self._choices(name, group, left)) for name, group in groups]
        for chosen in itertools.product(*options):
            self._count_moves(1 + len(chosen))
            after = self._next(moment, left, frozenset(step for steps in chosen for step in steps))
            if after.active:
                yield after

    def _choices(self, name: str, group: tuple[str, ...], left: Mapping[str, int]) -> Iterator[tuple[_Step, ...]]:
        """The steps that a node may take at once of a group: one, or more where it has several tasks or fans out."""
        free = [target for target in group if left.get(target, 1) and left.get(f"{name}->{target}", 1)]
        alone = [(target,) for target in free if target not in self._fan_out]
        together = _subsets([target for target in free if target in self._fan_out])
        several = _subsets([*alone, *together], self._fan_out.get(name, 1))
        for ways in several:
            self._count_moves(1)
            yield tuple((name, target) for way in ways for target in way)
        if not free:
            yield ()

    def _next(self, moment: _Moment, left: Mapping[str, int], steps: frozenset[_Step]) -> _Moment:
        started = {target for _, target in steps if target != END}
        waiting = set(moment.waiting)
        for number, (sources, target) in enumerate(self._wired.joins):
            waiting.update((source, number) for source in sources if source in moment.active)
            if waiting.issuperset(seen := {(source, number) for source in sources}):
                waiting -= seen
                if all(left.get(cap, 1) for cap in (target, *(f"{source}->{target}" for source in sources))):
                    started.add(target)
                    steps |= {(source, target) for source in sources}
        new = started - {name for name, number in waiting if number == _DEFERRED}
        used = new | {f"{source}->{target}" for source, target in steps}
        # The tasks that a router starts are not deferred, whatever their node is, and nothing that is waits for them.
        deferred = self._wired.deferred - self._fan_out.keys()
        waiting.update((name, _DEFERRED) for name in started & deferred)
        active = started - deferred
        if not active - self._fan_out.keys():
            active |= {name for name, number in waiting if number == _DEFERRED}
            waiting = {(name, number) for name, number in waiting if number != _DEFERRED}
        return _Moment(
            active=frozenset(active),
            waiting=frozenset(waiting),
            left=tuple(count - (cap in used) for cap, count in left.items()),
        )

    def _count_moves(self, moves: int) -> None:
        self._moves += moves
        if self._moves > _MOST_MOVES:
            raise _TooManyWays


def _subsets(items: Sequence[Item], most: int | None = None) -> Iterator[tuple[Item, ...]]:
    """The subsets of one item and more, up to `most` items."""
    for size in range(1, min(most or len(items), len(items)) + 1):
        yield from itertools.combinations(items, size)
