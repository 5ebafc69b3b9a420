"""What an audit finds worth telling. One function per finding; docs/audit.md has an entry for each code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from endstop.langgraph._audits import SEVERITIES, Costs, Cycle, EffectiveLimit, Finding, Rounds, WorstCase
from endstop.langgraph._costs import costs_of, rounds_under
from endstop.langgraph._graph_map import Bounded, GraphCall, GraphMap, Node
from endstop.langgraph._wiring import arrivals, wiring

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

HIGH_LIMIT = 1_000
"""Super-steps from which on a limit is one that nobody wants to see reached."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is known of one graph. `path` is where it stands in the whole: empty, or `outer/inner`."""

    graph: GraphMap
    path: str
    limit: EffectiveLimit
    costs: Costs | None
    rounds: Rounds | None
    cycles: tuple[Cycle, ...]
    worst_case: WorstCase | None
    fan_out: Mapping[str, int]
    bounded: Bounded | None = None

    @property
    def ends_at_any_limit(self) -> bool:
        """Whether even the recursion limit ends a run in order."""
        return self.bounded is not None and self.bounded.by == "bound"

    def at(self, node: str = "") -> str:
        """A node of this graph, or the graph, by its path in the whole."""
        return "/".join(part for part in (self.path, node) if part)

    @property
    def may_reach_limit(self) -> bool:
        """Whether a run can go on until the recursion limit breaks it off."""
        if self.ends_at_any_limit or (self.bounded is not None and self.limit.super_steps >= HIGH_LIMIT):
            return False
        worst = self.worst_case
        return worst is None or worst.super_steps.number >= self.limit.super_steps


def findings_of(facts: Facts) -> tuple[Finding, ...]:
    """All findings about one graph."""
    return tuple(finding for find in _FINDERS for finding in find(facts))


def by_gravity(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """The same findings, the gravest first."""
    return tuple(sorted(findings, key=lambda finding: -SEVERITIES.index(finding.severity)))


def effective_limit(facts: Facts) -> Iterator[Finding]:
    """Which limit holds, and whose it is; told once, for the whole."""
    if not facts.path:
        yield Finding(
            code="effective_limit",
            severity="info",
            explanation=f"A run may take {facts.limit.super_steps:,} super-steps: {facts.limit.source}.",
            remedy="Give recursion_limit with every run, so that it does not depend on how the run is started.",
        )


def unbounded_in_practice(facts: Facts) -> Iterator[Finding]:
    """A loop that only a limit of thousands ends."""
    loops = facts.worst_case is None and facts.graph.api == "graph"
    if loops and facts.bounded is None and facts.limit.super_steps >= HIGH_LIMIT:
        uncapped = [cycle for cycle in facts.cycles if not cycle.caps]
        loop = f"the loop {uncapped[0]}" if uncapped else "a loop"
        more = f" and {len(uncapped) - 1} more" if len(uncapped) > 1 else ""
        yield Finding(
            code="unbounded_in_practice",
            severity="warning",
            explanation=f"Nothing ends {loop}{more} before super-step {facts.limit.super_steps:,}: a run that does not "
            "come out of it is paid for until then, and what it did is lost.",
            remedy="Give a recursion_limit that fits the task, or bound(graph, limits), which ends with what there is.",
            where=facts.at(uncapped[0].nodes[0] if uncapped else ""),
        )


def no_round_can_finish(facts: Facts) -> Iterator[Finding]:
    """A limit under which every run raises."""
    if facts.costs is not None and facts.rounds is not None and facts.rounds.finish == 0:
        ends = "is cut" if facts.ends_at_any_limit else "raises GraphRecursionError"
        least = max(facts.costs.entry + facts.costs.exit, facts.costs.least) + 1
        yield Finding(
            code="no_round_can_finish",
            severity="error",
            explanation=f"Every run {ends}: even one whose model answers at once needs a limit of "
            f"{least}, and this one is {facts.limit.super_steps}.",
            remedy=f"Give a recursion_limit of at least {least}.",
            where=facts.at(facts.costs.model),
        )


def worst_case_exceeds_limit(facts: Facts) -> Iterator[Finding]:
    """Local caps that add up to more than the recursion limit."""
    if facts.worst_case is not None and facts.may_reach_limit:
        steps = facts.worst_case.super_steps
        may = "takes" if steps.exact else "may take up to"
        yield Finding(
            code="worst_case_exceeds_limit",
            severity="error",
            explanation=f"The longest run that the caps allow {may} {steps.number:,} super-steps ({steps.formula}); "
            f"under a limit of {facts.limit.super_steps:,} a run must end within {facts.limit.super_steps - 1:,}. It "
            "raises, and what it did is lost.",
            remedy=f"Give a recursion_limit of at least {steps.number + 1:,}, lower the caps, or use "
            "bound(graph, limits), which ends with what there is.",
            where=facts.at(),
        )


def unknown_targets(facts: Facts) -> Iterator[Finding]:
    """Edges that the graph does not declare."""
    for unknown in facts.graph.unknown:
        if unknown.kind == "branch":
            explanation = f"The branch {unknown.name!r} does not say where it leads, so it may lead to any node."
            remedy = "Give add_conditional_edges a path_map, or annotate the router `-> Literal[...]`."
        elif unknown.kind == "command":
            who = f"the tool {unknown.name!r}" if unknown.name else "the node"
            explanation = f"A Command that {who} returns may lead to any node."
            remedy = "Annotate the node `-> Command[Literal[...]]`, or give add_node its destinations."
        else:
            continue
        yield Finding(
            code="unknown_targets",
            severity="warning",
            explanation=f"{explanation} Pictures of the graph may hide a loop here; this audit counts it.",
            remedy=remedy,
            where=facts.at(unknown.node),
        )


def subagent_escapes_limit(facts: Facts) -> Iterator[Finding]:
    """Graphs called from code that have a limit of their own."""
    for node, call in _calls(facts.graph):
        tool, graph = call.tool, call.graph
        if graph.bound_recursion_limit is not None and not call.takes_config and facts.bounded is None:
            caller = f"The tool {tool!r}" if tool else "The node"
            yield Finding(
                code="subagent_escapes_limit",
                severity="warning",
                explanation=f"{caller} calls the graph {graph.name!r}, which is bound to "
                f"{graph.bound_recursion_limit:,} super-steps; the limit here does not reach it.",
                remedy="Hand the caller's config on (`agent.invoke(x, config)`), or use bound(graph, limits) on the "
                "outer graph: its budget is shared.",
                where=facts.at(node.name),
            )


def fan_out_multiplies(facts: Facts) -> Iterator[Finding]:
    """Work that the recursion limit counts as one super-step, however much it is."""
    for node, call in _calls(facts.graph):
        tool, graph = call.tool, call.graph
        counted = facts.bounded is not None
        if (
            tool
            and not counted
            and facts.rounds is not None
            and (inner := _rounds_inside(graph, facts.limit)) is not None
        ):
            outer = facts.rounds.called
            yield Finding(
                code="fan_out_multiplies",
                severity="warning",
                explanation=f"Each call of the tool {tool!r} runs the graph {graph.name!r} with a counter of its own: "
                f"{outer:,} rounds here and {inner:,} there come to {outer + (outer - 1) * inner:,} model calls, with "
                "one such call a round. Parallel calls multiply that and cost one super-step.",
                remedy="Use bound(graph, PlanLimits(max_model_calls=...)): it counts the calls of sub-agents too.",
                where=facts.at(node.name),
            )
    sent = {edge.target: edge.source for edge in facts.graph.edges if edge.kind == "send"}
    for target, source in sent.items():
        node = facts.graph.node(target)
        if node.kind not in ("tools", "end") and target not in facts.fan_out:
            yield Finding(
                code="fan_out_multiplies",
                severity="warning",
                explanation=f"{source!r} may start {target!r} any number of times at once; the recursion limit counts "
                "them as one super-step, and the worst case here as one execution.",
                remedy=f"Say how many at most: fan_out={{{target!r}: N}}, on the command line --fan-out {target}=N.",
                where=facts.at(target),
            )


def middleware_steps(facts: Facts) -> Iterator[Finding]:
    """What the hooks of middleware cost."""
    hooks = facts.graph.of_kind("hook")
    if hooks and facts.costs is not None:
        counts = {
            when: [node.name for node in hooks if node.hook in names]
            for when, names in (
                ("a round", ("before_model", "after_model")),
                ("a run", ("before_agent", "after_agent")),
            )
        }
        told = [f"{len(names)} {when} ({', '.join(names)})" for when, names in counts.items() if names]
        yield Finding(
            code="middleware_steps",
            severity="info",
            explanation=f"Each hook is a node, and takes a super-step: {'; '.join(told)}.",
            remedy="Raise the limit with the hooks; wrap_model_call and wrap_tool_call cost no super-step.",
            where=facts.at(facts.costs.model),
        )


def after_agent_skipped_on_limit(facts: Facts) -> Iterator[Finding]:
    """Work after the agent that a run which reaches its limit never does."""
    names = [node.name for node in facts.graph.of_kind("hook") if node.hook == "after_agent"]
    if names and facts.may_reach_limit:
        yield Finding(
            code="after_agent_skipped_on_limit",
            severity="warning",
            explanation=f"At the recursion limit the run raises, and {', '.join(names)} does not run.",
            remedy="Limit the run before that, with BoundMiddleware or a lower cap; bound(graph, limits) says what was "
            "skipped.",
            where=facts.at(names[0]),
        )


def odd_limit_leaves_dangling_call(facts: Facts) -> Iterator[Finding]:
    """A limit that falls between the model's question and the tools' answer."""
    costs, limit = facts.costs, facts.limit.super_steps
    if costs is None or costs.per_round is None or limit < costs.entry or not facts.may_reach_limit:
        return
    if facts.graph.node(costs.model).drops_calls:
        return
    ways = arrivals(wiring(facts.graph, jumps=False), costs.model)
    until_tools = min((ways[node.name] for node in facts.graph.of_kind("tools") if node.name in ways), default=0)
    over = (limit - costs.entry) % costs.per_round
    if over < until_tools:
        better = limit - over - 1
        yield Finding(
            code="odd_limit_leaves_dangling_call",
            severity="warning",
            explanation=f"A limit of {limit:,} is reached after the model has asked for tools and before they ran: the "
            "saved thread keeps calls without answers, which a provider refuses in the next turn.",
            remedy=f"Use {better:,} or {better + costs.per_round:,}, or bound(graph, limits) or BoundMiddleware, which "
            "answer every call.",
            where=facts.at(costs.model),
        )


def configurable_limit_ignored(facts: Facts) -> Iterator[Finding]:
    """A limit in the wrong place."""
    if (limit := facts.graph.misplaced_recursion_limit) is not None:
        yield Finding(
            code="configurable_limit_ignored",
            severity="error",
            explanation=f"recursion_limit={limit} is bound under `configurable`, where LangGraph does not look.",
            remedy=f'Bind it beside `configurable`: graph.with_config({{"recursion_limit": {limit}}}).',
            where=facts.at(),
        )


def functional_api_unbounded(facts: Facts) -> Iterator[Finding]:
    """An entrypoint, whose tasks the recursion limit does not count."""
    if facts.graph.api == "functional" and facts.bounded is None:
        yield Finding(
            code="functional_api_unbounded",
            severity="warning",
            explanation="An @entrypoint is one super-step, whatever it does: the recursion limit does not count its "
            "tasks, and a loop in it has no bound.",
            remedy="Count in the loop, or use bound(graph, limits), which counts model and tool calls.",
            where=facts.at(facts.graph.nodes[1].name),
        )


def limit_middleware_resets_on_resume(facts: Facts) -> Iterator[Finding]:
    """A limit for one run where a run goes on after it was interrupted."""
    pausing = [node.name for node in facts.graph.nodes if node.pauses]
    limited = {node.middleware: node for node in facts.graph.of_kind("hook") if node.run_limit is not None}
    for name, node in limited.items():
        if pausing:
            yield Finding(
                code="limit_middleware_resets_on_resume",
                severity="warning",
                explanation=f"{name}(run_limit={node.run_limit}) counts from zero after each approval: "
                f"{', '.join(pausing)} may interrupt the run, and each resume is a run of its own to it.",
                remedy="Use BoundMiddleware, whose counters go on, or thread_limit.",
                where=facts.at(node.name),
            )


def bounded(facts: Facts) -> Iterator[Finding]:
    """Limits of endstop's that hold every run."""
    if facts.graph.bounded is not None:
        by, limits = facts.graph.bounded.by, facts.graph.bounded.limits
        yield Finding(
            code="bounded",
            severity="info",
            explanation=f"{by} ends every run inside {limits}: in order, with an answer, and it says how.",
            remedy="The figures are those of the graph without it; it adds no super-step.",
            where=facts.at(),
        )


_FINDERS = (
    configurable_limit_ignored,
    no_round_can_finish,
    worst_case_exceeds_limit,
    unbounded_in_practice,
    unknown_targets,
    subagent_escapes_limit,
    fan_out_multiplies,
    functional_api_unbounded,
    limit_middleware_resets_on_resume,
    after_agent_skipped_on_limit,
    odd_limit_leaves_dangling_call,
    middleware_steps,
    bounded,
    effective_limit,
)


def _calls(graph: GraphMap) -> Iterator[tuple[Node, GraphCall]]:
    return ((node, call) for node in graph.nodes for call in node.calls if not call.graph.again)


def _rounds_inside(graph: GraphMap, limit: EffectiveLimit) -> int | None:
    """The rounds in which the model of a called graph can be called, under its own limit or the one around it."""
    costs = costs_of(graph)
    return None if costs is None else rounds_under(costs, graph.bound_recursion_limit or limit.super_steps).called
