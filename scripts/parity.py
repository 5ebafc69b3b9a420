"""Runs LangChain's and LangGraph's own agent tests twice: as they are, and with the one import changed that cuts over.

    python scripts/parity.py [--json] [--source DIR] [--suite NAME]

The tests are those of the installed versions. pip fetches their source distributions into build/parity, or DIR has
them. What pytest prints is kept in build/parity too.
A table says for each file who served the turns of the tests that pass, the kernel or the legacy body by named refusal.
The exit code is 1 where a test passes as it is and does not pass here.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import parity_plugin

SCRIPTS = Path(__file__).resolve().parent
CACHE = SCRIPTS.parent / "build" / "parity"
PLACES = ("kernel", "refusal", "no turn")
"""Of a test that passes: the kernel served each turn, the legacy body served one, there was no turn."""
TABLE = ("file", "passed", "failed", "skipped", *PLACES, "failed", "skipped")
MEASURED_WITH = ("langchain", "langchain-core", "langgraph", "langgraph-prebuilt")
ENVIRONMENT = {
    "ENDSTOP_CUTOVER_INVOCATION_RUN": "on",
    "ENDSTOP_CUTOVER_INVOCATION_STREAM": "on",
    "LANGCHAIN_TRACING_V2": "false",
    "LANGSMITH_TRACING": "false",
}


class Unusable(Exception):
    """The suites cannot be had, or cannot be run as they are meant; the text is why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """Tests of a distribution. `name` is imported from `ours` instead of the modules `theirs`; `targets` are run."""

    distribution: str
    targets: tuple[str, ...]
    name: str
    theirs: frozenset[str]
    ours: str
    options: tuple[str, ...] = ()


SUITES = (
    Suite(
        distribution="langchain",
        targets=("tests/unit_tests/agents",),
        name="create_agent",
        theirs=frozenset({"langchain.agents", "langchain.agents.factory"}),
        ours="endstop.cutover",
        options=("--disable-socket", "--allow-unix-socket"),
    ),
    Suite(
        distribution="langgraph-prebuilt",
        targets=(
            "tests/test_react_agent.py",
            "tests/test_react_agent_graph.py",
            "tests/test_injected_state_not_required.py",
            "tests/test_deprecation.py",
        ),
        name="create_react_agent",
        theirs=frozenset({"langgraph.prebuilt", "langgraph.prebuilt.chat_agent_executor"}),
        ours="endstop.cutover",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a test ended, and the codes of the refusals of each of its turns."""

    result: str
    turns: tuple[tuple[str, ...], ...] = ()

    @property
    def codes(self) -> frozenset[str]:
        """What kept turns of the test from the kernel."""
        return frozenset(code for turn in self.turns for code in turn)

    @property
    def place(self) -> str:
        """Which of the columns of the table counts the test."""
        if self.result != "passed":
            return self.result
        return "no turn" if not self.turns else "refusal" if self.codes else "kernel"


Outcomes = Mapping[str, Outcome]


# --- what the two runs say ------------------------------------------------------------------------------------------


def lost(original: Outcomes, ours: Outcomes) -> list[str]:
    """The tests that pass as they are and do not pass with the import changed; one that is not even there is lost."""
    passing = (test for test, outcome in original.items() if outcome.result == "passed")
    return [test for test in passing if test not in ours or ours[test].result != "passed"]


def rows(original: Outcomes, ours: Outcomes) -> list[tuple[str | int, ...]]:
    """The table: a row for each file and one for all, of as many cells as `TABLE`."""
    files = sorted({_file(test) for test in {*original, *ours}})
    columns = [(side, place) for side, places in ((0, TABLE[1:4]), (1, TABLE[4:])) for place in places]
    counts: Counter[tuple[str, int, str]] = Counter()
    for test, outcome in original.items():
        counts.update({(_file(test), 0, outcome.result): 1, ("all", 0, outcome.result): 1})
    for test, outcome in ours.items():
        counts.update({(_file(test), 1, outcome.place): 1, ("all", 1, outcome.place): 1})
    return [(file, *(counts[file, side, place] for side, place in columns)) for file in [*files, "all"]]


def refusals(ours: Outcomes) -> list[tuple[str, int, int]]:
    """Each code, the passing tests that it keeps from the kernel, and those that nothing else keeps from it."""
    kept = [outcome.codes for outcome in ours.values() if outcome.place == "refusal"]
    tests = Counter(code for codes in kept for code in codes)
    alone = Counter(code for codes in kept if len(codes) == 1 for code in codes)
    return [(code, count, alone[code]) for code, count in sorted(tests.items(), key=lambda each: (-each[1], each[0]))]


def _file(test: str) -> str:
    return test.partition("::")[0]


# --- the one import -------------------------------------------------------------------------------------------------


def rewritten(source: str, suite: Suite) -> str:
    """The text of a test module with the suite's one name imported from `ours`; all other lines stay as they are.

    Raises:
        Unusable: the name is reached in a way that no import shows.
    """
    lines = source.splitlines(keepends=True)
    tree = ast.parse(source)
    for node in reversed(list(ast.walk(tree))):
        match node:
            case ast.ImportFrom(module=module, level=0) if module in suite.theirs and _names(node, suite):
                _replace(lines, node, suite)
            case ast.Attribute(attr=attribute) if attribute == suite.name:
                raise Unusable(f"line {node.lineno} reaches {suite.name} as an attribute, which stays the original")
            case _:
                pass
    return "".join(lines)


def _names(node: ast.ImportFrom, suite: Suite) -> list[ast.alias]:
    return [alias for alias in node.names if alias.name == suite.name]


def _replace(lines: list[str], node: ast.ImportFrom, suite: Suite) -> None:
    moved = _names(node, suite)
    kept = [alias for alias in node.names if alias not in moved]
    statements = [ast.ImportFrom(module=suite.ours, names=moved, level=0)]
    if kept:
        statements.insert(0, ast.ImportFrom(module=node.module, names=kept, level=0))
    first, last = node.lineno - 1, node.end_lineno or node.lineno
    # Columns are counted in bytes.
    before = lines[first].encode()[: node.col_offset].decode()
    after = lines[last - 1].encode()[node.end_col_offset or 0 :].decode()
    lines[first:last] = [before + "; ".join(map(ast.unparse, statements)) + after]


# --- fetching and running -------------------------------------------------------------------------------------------


def archive(distribution: str, folder: Path, *, may_fetch: bool) -> Path:
    """The source distribution of what is installed, fetched into the folder where it is not there.

    Raises:
        Unusable: it is not there, and pip may not or cannot fetch it.
    """
    pinned = f"{distribution}=={version(distribution)}"
    path = folder / f"{distribution.replace('-', '_')}-{version(distribution)}.tar.gz"
    if not path.is_file() and may_fetch:
        # The tools that read its metadata are installed; pip would build them from source first.
        how = ("--no-deps", "--no-build-isolation", "--no-binary", ":all:", "--disable-pip-version-check", "--quiet")
        subprocess.run([sys.executable, "-m", "pip", "download", *how, "-d", str(folder), pinned], check=False)
    if not path.is_file():
        raise Unusable(f"{path} is not there: get the source distribution of {pinned}, and name its folder by --source")
    return path


def unpacked(suite: Suite, sdist: Path, folder: Path) -> Path:
    """A fresh folder with the tests of a source distribution and their settings, without the package itself.

    Raises:
        Unusable: the distribution comes without the tests.
    """
    shutil.rmtree(folder, ignore_errors=True)
    with tarfile.open(sdist) as tar:
        root = tar.getnames()[0].partition("/")[0]
        wanted = (f"{root}/tests/", f"{root}/pyproject.toml")
        tar.extractall(folder, [member for member in tar if member.name.startswith(wanted)], filter="data")
    for target in suite.targets:
        if not (folder / root / target).exists():
            raise Unusable(f"{sdist.name} has no {target}")
    return folder / root


def change_imports(suite: Suite, tree: Path) -> None:
    """Changes the one import in each test module of the tree.

    Raises:
        Unusable: a module reaches the name in another way, or none has it.
    """
    changed: list[Path] = []
    for path in sorted(tree.glob("tests/**/*.py")):
        before = path.read_text(encoding="utf-8")
        try:
            after = rewritten(before, suite) if suite.name in before else before
        except Unusable as error:
            raise Unusable(f"{path}: {error}") from None
        if after != before:
            path.write_text(after, encoding="utf-8")
            changed.append(path)
    if not changed:
        raise Unusable(f"no test module in {tree} imports {suite.name}")
    return changed


def run(suite: Suite, tree: Path, report: Path) -> dict[str, Outcome]:
    """Runs the tests of a tree; what pytest prints is in a log beside the report.

    Raises:
        Unusable: no test ran.
    """
    report.parent.mkdir(parents=True, exist_ok=True)
    report.unlink(missing_ok=True)
    paths = os.pathsep.join(filter(None, (str(SCRIPTS), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, **ENVIRONMENT, "PYTHONPATH": paths, parity_plugin.REPORT: str(report.resolve())}
    plugins = ("-p", parity_plugin.__name__, "-p", "no:cacheprovider", "-p", "no:randomly")
    command = [sys.executable, "-m", "pytest", *suite.targets, *plugins, *suite.options]
    command += ["-o", "addopts=", "--continue-on-collection-errors"]
    log = report.with_suffix(".log")
    with log.open("w", encoding="utf-8") as output:
        subprocess.run(command, cwd=tree, env=environment, stdout=output, stderr=subprocess.STDOUT, check=False)
    if not report.is_file():
        raise Unusable(f"no test of {suite.distribution} ran: see {log}")
    return read(report.read_text(encoding="utf-8").splitlines())


def read(lines: Iterable[str]) -> dict[str, Outcome]:
    """The outcomes by the id of the test, from what the plugin wrote."""
    found = map(json.loads, lines)
    return {each["id"]: Outcome(result=each["outcome"], turns=tuple(map(tuple, each["turns"]))) for each in found}


def both(suite: Suite, sdist: Path, folder: Path) -> tuple[dict[str, Outcome], dict[str, Outcome]]:
    """The outcomes of a suite as it is, and with the import changed."""
    as_is, changed = (unpacked(suite, sdist, folder / name) for name in ("original", "ours"))
    change_imports(suite, changed)
    return run(suite, as_is, folder / "original.jsonl"), run(suite, changed, folder / "ours.jsonl")


# --- printing -------------------------------------------------------------------------------------------------------


def as_json(found: Mapping[str, tuple[Outcomes, Outcomes]]) -> str:
    """All of it, for a program."""
    document = {
        "versions": {name: version(name) for name in MEASURED_WITH},
        "suites": {
            name: {
                "tests": {test: {"result": each.result, "place": each.place} for test, each in ours.items()},
                "original": {test: each.result for test, each in original.items()},
                "refusals": [dict(zip(("code", "tests", "alone"), each, strict=True)) for each in refusals(ours)],
                "lost": lost(original, ours),
            }
            for name, (original, ours) in found.items()
        },
    }
    return json.dumps(document, indent=2)


def as_text(name: str, original: Outcomes, ours: Outcomes) -> str:
    """One suite, for a person: the table, why the kernel did not serve, and what is lost."""
    lines = [f"{name} {version(name)}: the suite as it is (3 columns) and with the import changed", ""]
    lines += _table(TABLE, rows(original, ours))
    lines += ["", "What keeps tests from the kernel; `alone`: nothing else does:", ""]
    lines += _table(("code", "tests", "alone"), refusals(ours))
    missed = lost(original, ours)
    lines += ["", f"{len(missed)} tests pass as they are and not here", *(f"  {test}" for test in missed), ""]
    return "\n".join(lines)


def _table(head: Sequence[str], body: Iterable[Sequence[str | int]]) -> list[str]:
    return [f"| {' | '.join(map(str, cells))} |" for cells in (head, ("---",) * len(head), *body)]


def main(arguments: Sequence[str]) -> int:
    """Runs the suites and prints what came of it. Returns the exit code: 2 where they cannot be run."""
    parser = argparse.ArgumentParser(prog="parity", description="LangChain's own agent tests on the cutover.")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--source", type=Path, metavar="DIR", help="a folder with the source distributions")
    parser.add_argument("--suite", choices=[suite.distribution for suite in SUITES], help="run this one alone")
    options = parser.parse_args(arguments)
    found: dict[str, tuple[Outcomes, Outcomes]] = {}
    try:
        for suite in SUITES:
            if options.suite in (None, suite.distribution):
                sdist = archive(suite.distribution, options.source or CACHE, may_fetch=options.source is None)
                found[suite.distribution] = both(suite, sdist, CACHE / suite.distribution)
                if not options.json:
                    print(as_text(suite.distribution, *found[suite.distribution]), flush=True)
    except Unusable as error:
        print(f"parity: {error}", file=sys.stderr)
        return 2
    if options.json:
        print(as_json(found))
    return 1 if any(lost(original, ours) for original, ours in found.values()) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
