"""`make parity`: one import changes and nothing else, each test lands where its turns say, and none is lost unseen."""

from __future__ import annotations

import io
import json
import re
import tarfile
from pathlib import Path

import pytest

import parity
from parity import Outcome, Suite, Unusable

SUITE = Suite(
    distribution="pytest",
    targets=("tests",),
    name="create_agent",
    theirs=frozenset({"shop.agents", "shop.agents.factory"}),
    ours="cut_over_shop",
)


def outcome(result: str = "passed", *turns: tuple[str, ...]) -> Outcome:
    return Outcome(result=result, turns=turns)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("from shop.agents import create_agent\n", "from cut_over_shop import create_agent\n"),
        ("from shop.agents.factory import create_agent\n", "from cut_over_shop import create_agent\n"),
        (
            "from shop.agents import create_agent as make  # it\n",
            "from cut_over_shop import create_agent as make  # it\n",
        ),
        (
            "from shop.agents import (\n    AgentState,\n    create_agent,\n)\nx = 1\n",
            "from shop.agents import AgentState; from cut_over_shop import create_agent\nx = 1\n",
        ),
        (
            "def f():\n    x = 'ü'; from shop.agents import create_agent; return create_agent(x)\n",
            "def f():\n    x = 'ü'; from cut_over_shop import create_agent; return create_agent(x)\n",
        ),
        (
            "if x:\n    from shop.agents import create_agent\nfrom shop.agents import (a,\n  create_agent as b)\n",
            "if x:\n    from cut_over_shop import create_agent\n"
            "from shop.agents import a; from cut_over_shop import create_agent as b\n",
        ),
    ],
)
def test_the_one_name_is_imported_from_the_cutover(before: str, after: str) -> None:
    """In every spelling of the import, with what stands around it as it was."""
    assert parity.rewritten(before, SUITE) == after


@pytest.mark.parametrize(
    "source",
    [
        "from shop.agents import AgentState\n",
        "from shop.other import create_agent\n",
        "from .agents import create_agent\n",
        "from shop.agents.factory import _make\npatch('shop.agents.factory._make')\n",
        "# from shop.agents import create_agent\ntext = 'from shop.agents import create_agent'\n",
    ],
)
def test_all_else_stays_as_it_is(source: str) -> None:
    """Other names, other modules, comments and strings."""
    assert parity.rewritten(source, SUITE) == source


def test_a_spelling_that_would_stay_the_original_is_refused() -> None:
    """A test that reaches the original past the import would pass and prove nothing."""
    with pytest.raises(Unusable, match="line 2 reaches create_agent as an attribute"):
        parity.rewritten("from shop import agents\nagents.create_agent()\n", SUITE)


@pytest.mark.parametrize(
    ("ended", "place"),
    [
        (outcome("passed", (), ()), "kernel"),
        (outcome("passed", (), ("context_schema",)), "refusal"),
        (outcome("passed"), "no turn"),
        (outcome("failed", ()), "failed"),
        (outcome("skipped"), "skipped"),
    ],
)
def test_a_test_is_the_kernels_where_none_of_its_turns_fell_back(ended: Outcome, place: str) -> None:
    """One that falls back in part is by refusal; how one that does not pass was served is of no interest."""
    assert ended.place == place


def test_the_table_counts_every_test_of_both_runs_once() -> None:
    """By file, in the order of their names, and in all."""
    original = {"b.py::one": outcome(), "a.py::two": outcome("failed"), "a.py::three[x::y]": outcome("skipped")}
    ours = {
        "b.py::one": outcome("passed", ()),
        "a.py::two": outcome("passed", ("code",)),
        "a.py::three[x::y]": outcome("skipped"),
    }
    assert parity.rows(original, ours) == [
        ("a.py", 0, 1, 1, 0, 1, 0, 0, 1),
        ("b.py", 1, 0, 0, 1, 0, 0, 0, 0),
        ("all", 1, 1, 1, 1, 1, 0, 0, 1),
    ]
    assert all(len(row) == len(parity.TABLE) for row in parity.rows(original, ours))


def test_a_code_is_counted_by_the_tests_that_it_keeps_from_the_kernel() -> None:
    """Once a test, however many turns; `alone` counts those that serving it would win. The most costly stands first."""
    ours = {
        "one": outcome("passed", ("b",), ("b",)),
        "two": outcome("passed", ("a", "b")),
        "three": outcome("passed", ()),
        "four": outcome("failed", ("c",)),
    }
    assert parity.refusals(ours) == [("b", 2, 1), ("a", 1, 0)]


def test_lost_is_what_passes_as_it_is_and_does_not_pass_here() -> None:
    """A test that is skipped or missing here is lost too; one that fails as it is cannot be."""
    original = {name: outcome() for name in ("kept", "failing", "skipped", "missing")} | {"theirs": outcome("failed")}
    ours = {"kept": outcome(), "failing": outcome("failed"), "skipped": outcome("skipped"), "theirs": outcome("failed")}
    assert parity.lost(original, ours) == ["failing", "skipped", "missing"]


# --- a miniature suite, end to end ----------------------------------------------------------------------------------

AGENTS = """
def create_agent(wish):
    return wish
"""
CUT_OVER = """
from endstop.cutover.ledger import TurnRecord, default_ledger

def create_agent(wish):
    refusals = ("context_schema",) if wish == "context" else ()
    served_by = "legacy" if refusals else "kernel"
    default_ledger().add(
        TurnRecord(
            surface="invocation.run", route="kernel", switch="on", run_id="r", duration_ms=1.0,
            served_by=served_by, refusals=refusals,
        )
    )
    return "other" if wish == "broken" else wish
"""
TESTS = """
import os

import pytest

from shop.agents import create_agent

@pytest.mark.parametrize("wish", ["plain", "context", "broken"])
def test_agent(wish):
    assert create_agent(wish) == wish

def test_switches():
    assert os.environ["ENDSTOP_CUTOVER_INVOCATION_RUN"] == os.environ["ENDSTOP_CUTOVER_INVOCATION_STREAM"] == "on"

@pytest.fixture
def cleaned():
    yield
    raise OSError

def test_whose_clean_up_fails(cleaned):
    pass

@pytest.mark.skip
def test_skipped():
    pass
"""
FILES = {
    "pyproject.toml": "[tool.pytest.ini_options]\npythonpath = ['tests']\n",
    "tests/test_shop.py": TESTS,
    "tests/shop/__init__.py": "",
    "tests/shop/agents.py": AGENTS,
    "tests/cut_over_shop.py": CUT_OVER,
    "src/never_unpacked.py": "",
}


@pytest.fixture(autouse=True)
def miniature(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The script runs the miniature suite alone, without the plugins that this environment happens to have."""
    monkeypatch.setattr(parity, "SUITES", (SUITE,))
    monkeypatch.setattr(parity, "CACHE", tmp_path / "build")
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")


def packed(folder: Path, files: dict[str, str]) -> Path:
    """A source distribution of these files, by the name that the installed version of the suite's package gives it."""
    path = folder / f"pytest-{pytest.__version__}.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        for name, text in files.items():
            member = tarfile.TarInfo(f"pytest-{pytest.__version__}/{name}")
            member.size = len(text.encode())
            tar.addfile(member, io.BytesIO(text.encode()))
    return path


def test_a_suite_is_run_as_it_is_and_with_the_import_changed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each test in its column, the refusal named, the one that breaks listed, and the exit code says so."""
    packed(tmp_path, FILES)
    assert parity.main(["--source", str(tmp_path)]) == 1
    printed = capsys.readouterr().out
    assert "| tests/test_shop.py | 4 | 1 | 1 | 1 | 1 | 1 | 2 | 1 |" in printed
    assert "| context_schema | 1 | 1 |" in printed
    assert "1 tests pass as they are and not here\n  tests/test_shop.py::test_agent[broken]\n" in printed
    assert not list((tmp_path / "build").rglob("never_unpacked.py"))

    ours = parity.read((tmp_path / "build" / "pytest" / "ours.jsonl").read_text(encoding="utf-8").splitlines())
    document = json.loads(parity.as_json({"pytest": (ours, ours)}))["suites"]["pytest"]
    assert document["tests"]["tests/test_shop.py::test_agent[plain]"] == {"result": "passed", "place": "kernel"}
    assert document["refusals"] == [{"code": "context_schema", "tests": 1, "alone": 1}]
    assert document["lost"] == []


@pytest.mark.parametrize(
    ("files", "problem"),
    [
        ({}, r"get the source distribution of pytest=="),
        ({"pyproject.toml": ""}, r"has no tests"),
        (
            {"tests/test_shop.py": "from shop.agents import create_agent\n"},
            r"no test of pytest ran: see .*original\.log",
        ),
        ({"tests/test_shop.py": "def test(): pass\n"}, r"no test module in .* imports create_agent"),
    ],
    ids=["no archive", "no tests in it", "no test runs", "nothing to change"],
)
def test_what_cannot_be_compared_is_said(
    files: dict[str, str],
    problem: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """An empty comparison must not look like a clean one: the exit code is 2, and the text says what to do."""
    if files:
        packed(tmp_path, files)
    assert parity.main(["--source", str(tmp_path)]) == 2
    said = capsys.readouterr()
    assert not said.out
    assert re.search(problem, said.err)
