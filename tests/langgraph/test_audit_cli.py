"""`endstop audit` prints what the audit finds, draws it, and says in its exit code how grave that is."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from endstop.cli import main

GRAPHS = """
import operator
from typing import Annotated, TypedDict

from langgraph.graph import END, START, StateGraph

print("loaded")

class State(TypedDict):
    count: Annotated[int, operator.add]

def step(state):
    return {"count": 1}

builder = StateGraph(State)
builder.add_node("writer", step)
builder.add_node("reviewer", step)
builder.add_edge(START, "writer")
builder.add_edge("writer", "reviewer")
builder.add_conditional_edges("reviewer", lambda state: END, ["writer", END])

graph = builder.compile()

def make():
    return graph

async def make_later():
    return graph
"""

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def audit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Command]:
    """The command in a folder with graphs: its exit code, and what it prints on standard output and error."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    loaded = set(sys.modules)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "graphs.py").write_text(GRAPHS)
    package = tmp_path / "apps" / "desk"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("from .parts import graph")
    (package / "parts.py").write_text(GRAPHS)

    def run(*arguments: str) -> tuple[int, str, str]:
        code = main(["audit", *arguments])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    yield run
    for name in set(sys.modules) - loaded:
        if name.partition(".")[0] in ("graphs", "_endstop_graphs", "apps", "desk"):
            del sys.modules[name]


@pytest.mark.parametrize("spec", ["graphs:graph", "graphs.py:make", "apps/desk:graph"])
def test_the_report_is_printed(audit: Command, spec: str) -> None:
    """For a module, a file or a package's folder; what the module prints goes to standard error."""
    code, out, err = audit(spec, "--recursion-limit", "9", "--cap", "reviewer->writer=3")
    assert code == 0
    assert out.startswith("LangGraph: 2 nodes, 4 edges\n")
    assert "8 super-steps = 2 + 2 * caps[reviewer->writer]\n" in out
    assert err == "loaded\n"


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (["--recursion-limit", "8", "--cap", "reviewer->writer=3"], 1),
        (["--recursion-limit", "9", "--cap", "reviewer->writer=3"], 0),
        (["--recursion-limit", "9", "--cap", "reviewer->writer=3", "--fail-on", "warning"], 0),
        (["--recursion-limit", "9", "--cap", "reviewer->writer=3", "--fail-on", "info"], 1),
        (["--recursion-limit", "8", "--cap", "reviewer->writer=3", "--fail-on", "never"], 0),
        (["--recursion-limit", "5000"], 0),
        (["--recursion-limit", "5000", "--fail-on", "warning"], 1),
        (["--recursion-limit", "5000", "--cap", "writer=3", "--fail-on", "warning"], 0),
    ],
)
def test_the_exit_code_is_for_ci(audit: Command, options: list[str], code: int) -> None:
    """1 where a finding is as grave as was asked for; by default only errors are."""
    assert audit("graphs:graph", *options)[0] == code


def test_json_is_one_document(audit: Command) -> None:
    """And standard output has nothing else."""
    _, out, _ = audit(
        "graphs:graph", "--json", "--entry-point", "batch", "--fan-out", "writer=4", "--model-node", "writer"
    )
    document = json.loads(out)
    assert document["limit"]["super_steps"] == 25
    assert document["fan_out"] == {"writer": 4}
    assert document["costs"]["model"] == "writer"


def test_the_picture_is_written(audit: Command, tmp_path: Path) -> None:
    """Beside the report."""
    code, out, _ = audit("graphs:graph", "--svg", "graph.svg")
    assert code == 0
    assert "2 nodes" in out
    assert "<svg" in (tmp_path / "graph.svg").read_text("utf-8")[:200]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["graphs:builder"], "SPEC='graphs:builder' .*: it is not compiled yet; give what its compile"),
        (["graphs:step2"], "SPEC='graphs:step2' .*: graphs has no 'step2'; the graphs in it are: builder, graph"),
        (["graphs:State"], "name a compiled LangGraph graph, or a function that returns one"),
        (["graphs:make_later"], "make_later is async; name a graph, or a plain function that returns one"),
        (["apps:graph"], "apps has no 'graph'"),
        (["apps/none:graph"], "SPEC='apps/none:graph' .*: apps/none is no folder of a package"),
        (["graphs:graph", "--cap", "writer"], "--cap='writer' .*: write NAME=N, such as writer=3"),
        (["graphs:graph", "--cap", "editor=3"], "--cap='editor' .*: name a node or an edge"),
        (["graphs:graph", "--fan-out", "writer=0"], "--fan-out=0 .*: use a whole number, 1 or more"),
        (["graphs:graph", "--fan-out", "=3"], "--fan-out='=3' .*: write NAME=N"),
        (["graphs:graph", "--model-node", "llm"], "--model-node='llm' .*: name a node of the graph"),
        (["graphs:graph", "--cap", "writer=-1"], "error .config.: --cap='writer=-1' .*: write NAME=N"),
        (["graphs:graph", "--recursion-limit", "1.5"], "--recursion-limit=1.5 .*: use a whole number, 1 or more"),
        (["graphs:graph", "--recursion-limit", "0"], "--recursion-limit=0 .*: use a whole number, 1 or more"),
        (["graphs:graph", "--entry-point", "run"], "Invalid value"),
        (["graphs:graph", "--svg", "no/such/folder.svg"], "--svg='no/such/folder.svg' .*: name a file in a folder"),
    ],
)
def test_what_is_wrong_is_said(audit: Command, arguments: list[str], complaint: str) -> None:
    """The exit code is 2, nothing is printed as a report, and the line names the option, the value and the remedy."""
    code, out, err = audit(*arguments)
    assert (code, out) == (2, "")
    assert re.search(complaint, err)


def test_endstop_itself_needs_no_graphs() -> None:
    """Neither the package nor the command line imports LangGraph or networkx before a graph is audited."""
    script = "import sys, endstop, endstop.cli; print([m for m in ('langgraph', 'networkx') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
