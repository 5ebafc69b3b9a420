"""Drawn graphs are boxes and lines that keep clear of one another, whatever the graph."""

from __future__ import annotations

import random
import time
from itertools import combinations, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from endstop.langgraph._picture._layers import Link, Rows, Size, layers, loop_closing
from endstop.langgraph._picture._layout import Box, Layout, Point, Route, lay_out

NODE: Size = (100.0, 46.0)


def links(*ends: str) -> list[Link]:
    """Links without labels, written `ab` for one from `a` to `b`."""
    return [Link(source=source, target=target) for source, target in ends]


def plain(names: str, *ends: str) -> Layout:
    """The layout of nodes with one-letter names, all of one size."""
    return lay_out(dict.fromkeys(names, NODE), links(*ends))


@st.composite
def graphs(draw: st.DrawFn) -> tuple[dict[str, Size], list[Link]]:
    """Up to 30 nodes of different sizes with links between any two, several, or to itself; some with a label."""
    chance = random.Random(draw(st.integers(0, 2**32)))
    nodes = {
        f"n{number}": (chance.uniform(60, 260), chance.choice([26, 30, 46]))
        for number in range(draw(st.integers(1, 30)))
    }
    labels = [(0.0, 0.0), (0.0, 0.0), (8.0, 17.0), (60.0, 17.0), (140.0, 34.0)]
    ends = [chance.choices(list(nodes), k=2) for _ in range(chance.randint(0, 2 * len(nodes)))]
    return nodes, [Link(source=source, target=target, label=chance.choice(labels)) for source, target in ends]


def sampled(route: Route, steps: int = 24) -> list[Point]:
    """Points along the line, curves included."""
    found: list[Point] = []
    for (x0, y0), (x1, y1) in pairwise(route.points):
        for share in (number / steps for number in range(steps + 1)):
            if route.way in ("down", "up"):
                bent = 3 * share**2 - 2 * share**3
                found.append((x0 + (x1 - x0) * bent, y0 + (y1 - y0) * (1.5 * share - 1.5 * share**2 + share**3)))
            else:
                found.append((x0 + (x1 - x0) * share, y0 + (y1 - y0) * share))
    return found


def crosses(points: list[Point], box: Box) -> bool:
    """Whether one of the points lies inside the box, and not only at its edge."""
    left, right, top, bottom = box.left + 0.01, box.right - 0.01, box.top + 0.01, box.bottom - 0.01
    return any(left < x < right and top < y < bottom for x, y in points)


@given(graphs())
@settings(max_examples=100)
def test_no_two_nodes_or_labels_overlap(graph: tuple[dict[str, Size], list[Link]]) -> None:
    """Every node and every label has its own place."""
    layout = lay_out(*graph)
    boxes = [*layout.boxes.values(), *(route.label for route in layout.routes if route.label is not None)]
    assert len(boxes) == len(graph[0]) + sum(bool(link.label[0]) for link in graph[1])
    assert [pair for pair in combinations(boxes, 2) if pair[0].overlaps(pair[1])] == []


@given(graphs())
@settings(max_examples=40)
def test_no_line_runs_through_a_node_or_the_label_of_another(graph: tuple[dict[str, Size], list[Link]]) -> None:
    """A line meets its own label, and touches the nodes that it joins at their edge."""
    layout = lay_out(*graph)
    for number, route in enumerate(layout.routes):
        points = sampled(route)
        labels = [other.label for place, other in enumerate(layout.routes) if place != number and other.label]
        assert [box for box in (*layout.boxes.values(), *labels) if crosses(points, box)] == []


@given(graphs())
@settings(max_examples=100)
def test_no_two_lines_share_a_stretch_of_a_lane(graph: tuple[dict[str, Size], list[Link]]) -> None:
    """Lines of one lane run in different parts of it, so that each can be followed."""
    upright: dict[float, list[tuple[float, float]]] = {}
    for route in lay_out(*graph).routes:
        if route.way in ("left", "right"):
            (x, y0), (_, y1) = max(pairwise(route.points), key=lambda ends: abs(ends[0][1] - ends[1][1]))
            upright.setdefault(x, []).append((min(y0, y1), max(y0, y1)))
    for stretches in upright.values():
        assert [pair for pair in pairwise(sorted(stretches)) if pair[0][1] >= pair[1][0]] == []


@given(graphs())
@settings(max_examples=100)
def test_lines_start_and_end_at_the_edges_of_their_nodes(graph: tuple[dict[str, Size], list[Link]]) -> None:
    """Each link has one line, from its source to its target."""
    layout = lay_out(*graph)
    assert len(layout.routes) == len(graph[1])
    for link, route in zip(graph[1], layout.routes, strict=True):
        for name, (x, y) in ((link.source, route.points[0]), (link.target, route.points[-1])):
            box = layout.boxes[name]
            at_side = x in (pytest.approx(box.left), pytest.approx(box.right)) and box.top < y < box.bottom
            above_or_below = y in (pytest.approx(box.top), pytest.approx(box.bottom)) and box.left < x < box.right
            assert at_side or above_or_below


@given(graphs())
@settings(max_examples=100)
def test_everything_lies_inside_the_size(graph: tuple[dict[str, Size], list[Link]]) -> None:
    """The width and the height hold all boxes and lines."""
    layout = lay_out(*graph)
    boxes = [*layout.boxes.values(), *(route.label for route in layout.routes if route.label is not None)]
    corners = [(x, y) for box in boxes for x, y in ((box.left, box.top), (box.right, box.bottom))]
    for x, y in (*corners, *(point for route in layout.routes for point in route.points)):
        assert -0.01 <= x <= layout.width + 0.01
        assert -0.01 <= y <= layout.height + 0.01


@given(graphs())
@settings(max_examples=50)
def test_the_same_graph_has_the_same_layout(graph: tuple[dict[str, Size], list[Link]]) -> None:
    """Nothing depends on chance or on the order of a set."""
    assert lay_out(*graph) == lay_out(*graph)


def test_an_empty_graph_takes_no_room() -> None:
    """No nodes, no boxes."""
    assert lay_out({}, []) == Layout(boxes={}, routes=(), width=0.0, height=0.0)


def test_a_single_node_is_as_large_as_itself() -> None:
    """There is nothing around it."""
    assert plain("a") == Layout(boxes={"a": Box(x=50, y=23, width=100, height=46)}, routes=(), width=100, height=46)


def test_a_chain_is_one_straight_line_down() -> None:
    """Nodes one below the other, each line straight."""
    layout = plain("abcd", "ab", "bc", "cd")
    assert {box.x for box in layout.boxes.values()} == {50}
    assert [box.y for box in layout.boxes.values()] == sorted(box.y for box in layout.boxes.values())
    assert {x for route in layout.routes for x, _ in route.points} == {50}


def test_what_closes_a_loop_of_two_goes_up_between_the_rows() -> None:
    """Model and tools: one line down, and beside it one up."""
    down, up = plain("ab", "ab", "ba").routes
    assert (down.way, up.way) == ("down", "up")
    assert up.points[0][1] > up.points[-1][1]
    assert down.points[0][0] != up.points[-1][0]


def test_what_closes_a_longer_loop_runs_in_a_lane_at_the_right() -> None:
    """From the side of the one node out, up, and to the side of the other."""
    layout = plain("abc", "ab", "bc", "ca")
    back = layout.routes[2]
    assert back.way == "right"
    (x0, y0), (x1, y1), (x2, y2), (x3, y3) = back.points
    assert (x0, y0) == (layout.boxes["c"].right, layout.boxes["c"].y)
    assert (x3, y3) == (layout.boxes["a"].right, layout.boxes["a"].y)
    assert x1 == x2 == layout.width > x0
    assert (y1, y2) == (y0, y3)


def test_a_lane_that_others_stand_in_the_way_of_starts_below_its_node() -> None:
    """The end of a row goes straight out, the others by the space between the rows."""
    layout = plain("abcde", "ab", "bc", "bd", "be", "ca", "da", "ea")
    lowest = max(layout.boxes[name].bottom for name in "cde")
    starts = {route.points[0][1] for route in layout.routes[4:]}
    assert sorted(starts) == [layout.boxes["c"].y, lowest]
    below = [route.points[1][1] for route in layout.routes[4:] if route.points[0][1] == lowest]
    assert len(set(below)) == 2
    assert min(below) > lowest


def test_lanes_lie_around_each_other() -> None:
    """The longer the loop, the further out; loops that share no layer share a lane."""
    layout = plain("abcdefg", *map("".join, pairwise("abcdefg")), "ca", "ga", "gd")
    inner, outer, also_inner = (max(x for x, _ in route.points) for route in layout.routes[-3:])
    assert inner < outer
    assert also_inner == inner


def test_a_link_past_many_layers_runs_in_a_lane_at_the_left() -> None:
    """Up to 6 layers it goes down between the rows."""
    names = "abcdefghij"
    chain = map("".join, pairwise(names))
    *_, near, far = plain(names, *chain, "ag", "bi").routes
    assert (near.way, far.way) == ("down", "left")
    assert min(x for x, _ in far.points) == 0


def test_a_node_grows_with_its_own_loops() -> None:
    """Each has its place at the right, one below the other."""
    layout = lay_out({"a": NODE}, [Link(source="a", target="a", label=(50, 17))] * 3)
    labels = [route.label for route in layout.routes]
    assert layout.boxes["a"].height > NODE[1]
    assert [label.y for label in labels if label] == sorted({label.y for label in labels if label})
    assert all(
        route.way == "self" and label and label.left > layout.boxes["a"].right
        for route, label in zip(layout.routes, labels, strict=True)
    )


def test_parallel_links_have_lines_of_their_own() -> None:
    """A branch may lead to one node under several names."""
    routes = plain("ab", "ab", "ab", "ab").routes
    assert len({route.points for route in routes}) == 3


def test_all_links_among_twelve_nodes_are_drawn() -> None:
    """12 nodes, each linked with each and itself."""
    names = "abcdefghijkl"
    layout = plain(names, *(a + b for a in names for b in names))
    assert len(layout.routes) == 144
    assert [pair for pair in combinations(layout.boxes.values(), 2) if pair[0].overlaps(pair[1])] == []


def test_the_mirror_image_with_the_lanes_near_is_taken() -> None:
    """Of two nodes side by side the one with the loop stands at the right, in whatever order they come."""
    for ends in (("bc", "bd"), ("bd", "bc")):
        layout = plain("abcde", "ab", *ends, "ca", "de")
        assert layout.boxes["c"].x > layout.boxes["d"].x


def test_nodes_without_links_fill_rows() -> None:
    """They don't stretch the picture sideways without end."""
    layout = lay_out({f"n{number}": NODE for number in range(60)}, [])
    assert layout.width < 6 * 130
    assert len({box.y for box in layout.boxes.values()}) == 10


def test_no_node_stands_above_its_depth() -> None:
    """A node that nothing leads to stands where its depth puts it."""
    layout = lay_out(dict.fromkeys("abcd", NODE), links("ab", "bc"), {"d": 2})
    assert layout.boxes["d"].y == layout.boxes["c"].y


def test_loop_closing_links_lead_back_to_a_node_on_the_way() -> None:
    """Seen from the first node; a way on to a node that was seen before closes nothing."""
    assert loop_closing("abcd", links("ab", "bc", "ca", "ad", "dc", "aa")) == {2, 5}


def test_a_node_stands_below_all_that_lead_to_it() -> None:
    """The longest way counts, and layers without a node are left out."""
    assert layers("abcd", links("ab", "bc", "ac", "cd", "da"), {4}, {"d": 9}) == {"a": 0, "b": 1, "c": 2, "d": 3}


def test_rows_are_ordered_to_where_lines_do_not_cross() -> None:
    """Two lines that would cross are laid side by side."""
    rows = Rows(dict.fromkeys("abcd", NODE), {"a": 0, "b": 0, "c": 1, "d": 1})
    rows.thread(0, 3, 0.0)
    rows.thread(1, 2, 0.0)
    rows.arrange([])
    assert rows.crossings() == 0
    assert (rows.x[0] < rows.x[1]) == (rows.x[3] < rows.x[2])


def test_five_hundred_nodes_are_laid_out_in_time() -> None:
    """A thousand links among 500 nodes, each to one that stands near: well under a second."""
    chance = random.Random(7)
    names = [f"n{number}" for number in range(500)]
    near = [(max(0, min(499, n + chance.randint(-9, 12))), n) for n in range(500) for _ in range(2)]
    many = [Link(source=names[a], target=names[b], label=(40, 17)) for a, b in near]
    start = time.process_time()
    layout = lay_out(dict.fromkeys(names, NODE), many)
    assert time.process_time() - start < 1.0
    assert len(layout.routes) == 1000
