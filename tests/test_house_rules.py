"""The house rules hold in the whole tree, and each of them sees what it is for.

The rules are in scripts/house_rules.py. Each is run over samples that break it too, so that none can pass by seeing
nothing. An exception stands in `EXCEPTIONS` with its reason; one that is no longer needed fails the test, so the list
can only shrink.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

import house_rules
from house_rules import (
    MAX_FILE_LINES,
    MAX_FUNCTION_LINES,
    README_FIRST_PYTHON_BY_LINE,
    ROOT,
    RULES,
    SOURCE,
    File,
    Rule,
    exported,
    public_names,
    tree,
    undocumented,
)

EXCEPTIONS: dict[str, dict[str, str]] = {
    "no_broad_except": {
        "src/endstop/_tools.py::run_calls.execute": "whatever a tool raises goes back to the model as an error return",
        "src/endstop/cli.py::main": "the outermost handler: a person gets a line, not a traceback",
        "src/endstop/_tools.py::said": "an exception that cannot say what it is must still be told of",
        "src/endstop/models/langchain.py::_at_edge": "the one edge to providers whose errors share no base class",
        "src/endstop/cutover/_body.py::TurnModel.respond": "whatever a node raises is the caller's error, as it is",
        "src/endstop/cutover/_body.py::_answer": "whatever a tool raises is the caller's error, as it is",
        "src/endstop/cutover/envelope.py::_changes": "a function that fails on the probe does not just pass it on",
        "src/endstop/cutover/_turn.py::Turn._run": "adds the note that LangGraph adds, and raises it again",
        "src/endstop/cutover/ledger.py::keep": "whatever a ledger raises, the turn that it tells of is over and paid",
        "src/endstop/cutover/replay.py::_run": "whatever the replayed agent raises is its end, and on its tape",
        "src/endstop/langgraph/_finish.py::Closer._answer": "whatever a chat model raises, the next rung ends the run",
        "src/endstop/langgraph/_finish.py::Closer._made": "whatever the caller's own ending raises, the next rung does",
        "src/endstop/langgraph/_procedures.py::aperform": "the error of an action goes back to what asked for it",
        "src/endstop/langgraph/_procedures.py::perform": "the error of an action goes back to what asked for it",
        "src/endstop/langgraph/bound.py::_Bound.astream": "tells ends at a limit from the graph's own errors",
        "src/endstop/langgraph/bound.py::_Bound.stream": "tells ends at a limit from the graph's own errors",
        "tests/langgraph/test_bound.py::test_a_refusal_that_is_wrapped_is_still_an_end.wrapping": "what users write",
        "tests/langgraph/test_bound.py::test_code_that_swallows_the_refusal_cannot_spend.stubborn": "what users write",
        "tests/langgraph/test_meter.py::test_a_refused_tool_that_a_tool_calls_is_told_to_it.think": "what users write",
        "src/endstop/testing/models.py::check_model": "whatever an adapter raises is the finding of the check",
        "tests/cutover/scripts.py::seen": "whatever either body raises is compared",
        "tests/cutover/test_turn.py::heard": "whatever either body raises is compared",
    },
    "imports_stand_at_the_top": {
        "src/endstop/_pauses.py::bad_schema": "needed only where a tool asks a person; a third of the import time",
        "src/endstop/_pauses.py::schema_problem": "needed only where a person answers; a third of the import time",
    },
    "parameters_are_few": {
        "src/endstop/_tools.py::tool": "a decorator's options are its documentation, each named and with a default",
    },
    "public_signatures_have_no_any": {
        "src/endstop/turn_observation.py::ExtractingTurn.extraction_ops": "the type that the contract gives",
        "src/endstop/turn_observation.py::TurnObservation.extraction_ops": "the type that the contract gives",
        "src/endstop/turn_observation.py::observe_recall": "the type that the contract gives",
    },
    "records_are_frozen_slotted_keyword_only": {
        "src/endstop/cutover/_turn.py::Task": "filled while a node is executed",
        "src/endstop/_tools.py::Batch": "filled while the calls of one turn are answered",
        "src/endstop/_state.py::RunState": "the one mutable record of a run",
        "src/endstop/turn_observation.py::TurnObservation": "by contract one object that a turn writes into",
    },
}
"""Rule -> place -> why the rule does not hold there. A place whose file does not exist is no exception yet."""

FROZEN = "@dataclass(frozen=True, slots=True, kw_only=True)"

BREAKING: dict[Rule, list[str]] = {
    house_rules.files_are_short: ["x = 1\n" * (MAX_FILE_LINES + 1)],
    house_rules.functions_are_short: ["def f():\n" + "    x = 1\n" * MAX_FUNCTION_LINES],
    house_rules.parameters_are_few: [
        "def f(a, b, c, d, e, f, g, h, i): ...",
        "def f(a, b, c, d, /, e, *, f, g, h, **i): ...",
        "class A:\n    def f(self, a, b, c, d, e, f, g, h, i): ...",
        "class A:\n    @staticmethod\n    def f(a, b, c, d, e, f, g, h, i): ...",
    ],
    house_rules.comments_tell_no_history: [
        "x = 1  # see #123",
        "# issue 4 asks for it",
        "# GH-7",
        "# v1.2.3 changed it",
        "# since 0.3",
        "# TODO: later",
        'def f():\n    """Works since 0.3."""',
        'x = 1\n"""Added for ticket 12."""',
    ],
    house_rules.imports_stand_at_the_top: [
        "def f():\n    import json",
        "def f():\n    from endstop._limits import Price",
        "class A:\n    async def f(self):\n        if self:\n            from os import path",
    ],
    house_rules.kernel_does_not_import_the_package_root: ["from endstop import Agent", "def f():\n    import endstop"],
    house_rules.public_functions_name_their_arguments: [
        "def f(**options): ...",
        "class A:\n    def __init__(self, **options: object): ...",
        "class A:\n    async def f(self, **options: int): ...",
    ],
    house_rules.no_broad_except: [
        "try:\n    x\nexcept:\n    pass",
        "try:\n    x\nexcept Exception:\n    raise",
        "try:\n    x\nexcept (OSError, Exception) as e:\n    pass",
        "try:\n    x\nexcept BaseException:\n    pass",
        "with contextlib.suppress(Exception):\n    x",
    ],
    house_rules.public_signatures_have_no_any: [
        "def f(x: Any): ...",
        "def f(*, x: dict[str, typing.Any]): ...",
        "def f() -> 'list[Any]': ...",
        "class A:\n    def f(self, *x: Any): ...",
        "class A:\n    x: Callable[..., Any]",
    ],
    house_rules.escapes_say_why: [
        "x = f()  # type: ignore",
        "x = f()  # type: ignore[arg-type]",
        "x = f()  # type: ignore  # the stubs are wrong here",
        "x = f()  # pyright: ignore[reportUnknownMemberType]",
        "x = f()  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]",
        "x = f()  # noqa: E501",
        "x = f()  # noqa",
        "x = f()  # pragma: no cover",
        "x = cast(int, y)",
        "x = typing.cast('int', y)  # sure",
        "for x in cast(list, y):\n    z  # about something else",
    ],
    house_rules.records_are_frozen_slotted_keyword_only: [
        "@dataclass\nclass A: ...",
        "@dataclass(frozen=True, slots=True)\nclass A: ...",
        "@dataclasses.dataclass(frozen=False, slots=True, kw_only=True)\nclass A: ...",
    ],
    house_rules.nothing_names_this_machine: [
        "/" + "home/me/endstop",
        "see /" + "root/.cache",
        '"/' + 'work/x"',
        "file:" + "///data",
        "https://" + "pypi" + ".org/simple",
        "--index" + "-url x",
    ],
    house_rules.readme_shows_python_early: ["# A\n", "\n" * README_FIRST_PYTHON_BY_LINE + "```python\n"],
}

KEEPING: dict[Rule, list[str]] = {
    house_rules.files_are_short: ["x = 1\n" * MAX_FILE_LINES],
    house_rules.functions_are_short: ["def f():\n" + "    x = 1\n" * (MAX_FUNCTION_LINES - 1)],
    house_rules.parameters_are_few: ["class A:\n    def f(self, a, b, c, d, e, f, g, h): ..."],
    house_rules.comments_tell_no_history: [
        "# Python 3.11 has no such call",
        "x = '#123'",
        '"""The units of each limit."""',
    ],
    house_rules.imports_stand_at_the_top: ["import json", "def f():\n    import httpx", "class A:\n    import json"],
    house_rules.kernel_does_not_import_the_package_root: ["from endstop._limits import Price"],
    house_rules.public_functions_name_their_arguments: [
        "def _f(**options): ...",
        "def f():\n    def g(**options): ...",
        "def f(*args: P.args, **kwargs: P.kwargs): ...",
        "class _A:\n    def f(self, **options): ...",
    ],
    house_rules.no_broad_except: [
        "try:\n    x\nexcept OSError:\n    pass",
        "try:\n    x\nexcept BaseException:\n    y()\n    raise",
    ],
    house_rules.public_signatures_have_no_any: [
        "def _f(x: Any): ...",
        "def f(x: object) -> AnyStr: ...",
        "class A:\n    _x: Any",
    ],
    house_rules.escapes_say_why: [
        "x = f()  # type: ignore[arg-type]  # the stubs lack this overload",
        "x = f()  # noqa: N818 - it reads as what a tool says",
        "x = f()  # pragma: no cover - only on Windows",
        "x = cast(int, y)  # the check above left only numbers",
        "x = f(\n    cast(int, y)\n)  # the check above left only numbers",
    ],
    house_rules.records_are_frozen_slotted_keyword_only: [f"{FROZEN}\nclass A: ...", "@dataclass\nclass _A: ..."],
    house_rules.nothing_names_this_machine: [
        "https://example.com/home/me",
        "~/work/x",
        "$HOME/.cache",
        "/tmp/x",
        "/usr/bin/env",
    ],
    house_rules.readme_shows_python_early: ["# A\n```python\n"],
}


def sample(rule: Rule, text: str) -> File:
    return File("README.md" if rule is house_rules.readme_shows_python_early else "src/endstop/sample.py", text)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_tree_keeps_the_rule(rule: Rule) -> None:
    """No file breaks it but where an exception stands, and no exception stands that is not needed."""
    breaches = {
        f"{file.path}::{place}" if place else file.path: complaint
        for file in tree()
        if re.fullmatch(RULES[rule], file.path)
        for place, complaint in rule(file)
    }
    listed = EXCEPTIONS.get(rule.__name__, {})
    allowed = {place for place in listed if (ROOT / place.partition("::")[0]).is_file()}
    unexpected = [f"{place}: {complaint}" for place, complaint in breaches.items() if place not in allowed]
    assert not unexpected, "\n".join(unexpected)
    assert not allowed - breaches.keys(), "these exceptions are no longer needed: remove them"


@pytest.mark.parametrize(("rule", "text"), [(rule, text) for rule in RULES for text in BREAKING[rule]])
def test_the_checker_catches_a_breach(rule: Rule, text: str) -> None:
    """A rule that sees nothing would pass for ever."""
    assert list(rule(sample(rule, text)))


@pytest.mark.parametrize(("rule", "text"), [(rule, text) for rule in RULES for text in KEEPING[rule]])
def test_the_checker_lets_good_code_pass(rule: Rule, text: str) -> None:
    """A rule that cries wolf would be worked around."""
    assert not list(rule(sample(rule, text)))


def test_exceptions_are_for_rules_that_exist() -> None:
    """A renamed rule must not leave its exceptions behind."""
    assert EXCEPTIONS.keys() <= {rule.__name__ for rule in RULES}


def test_the_tree_is_seen() -> None:
    """The rules are run over this very file, so the list of files is not empty by accident."""
    assert Path(__file__).relative_to(ROOT).as_posix() in {file.path for file in tree()}


def test_every_public_name_has_a_docstring() -> None:
    """What a user can import says what holds; a constant or an alias says it in a string below it."""
    assert undocumented(public_names(), [file for file in tree() if re.fullmatch(SOURCE, file.path)]) == set()


def test_what_a_private_module_does_not_export_is_not_public() -> None:
    """The rules on signatures are for what users see."""
    assert "Agent" in public_names()
    source = "class Agent:\n    def run(self): ...\nclass Other:\n    def run(self): ..."
    private, public = File("src/endstop/_sample.py", source), File("src/endstop/sample.py", source)
    assert [name for name, _ in private.public_functions] == ["Agent.run"]
    assert [name for name, _ in public.public_functions] == ["Agent.run", "Other.run"]


def test_a_public_name_without_a_docstring_is_caught() -> None:
    """Classes, functions, constants and aliases alike."""
    bad = File("src/endstop/sample.py", "class A: ...\ndef b(): ...\nC = 1\nD: int = 2")
    good = File(
        "src/endstop/sample.py", 'class A:\n    """A."""\ndef b():\n    """B."""\nC = 1\n"""C."""\nD: int = 2\n"""D."""'
    )
    assert undocumented("AbCD", [bad]) == set("AbCD")
    assert undocumented("AbCD", [good]) == set()
    assert exported(File("src/endstop/__init__.py", "__all__ = ['A', 'b']")) == ["A", "b"]


def test_the_tools_are_set_as_strictly_as_agreed() -> None:
    """What ruff, the type checkers and pytest check for us is not switched off in passing."""
    tool = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
    agreed = {"E", "F", "W", "I", "B", "C4", "UP", "ASYNC", "G", "PIE", "PT", "RUF", "SIM", "TC", "TID251", "T201"}
    agreed |= {"TRY201", "PGH", "C90", "PLC0415", "ERA", "DTZ005"}
    assert agreed <= set(tool["ruff"]["lint"]["select"])
    assert tool["ruff"]["lint"]["mccabe"]["max-complexity"] <= 12
    assert tool["ruff"]["line-length"] == 120
    assert {"unittest.mock", "asyncio.create_task"} <= tool["ruff"]["lint"]["flake8-tidy-imports"]["banned-api"].keys()
    assert tool["mypy"]["strict"]
    assert tool["pyright"]["typeCheckingMode"] == "strict"
    assert tool["pytest"]["ini_options"]["filterwarnings"][0] == "error"
    assert tool["pytest"]["ini_options"]["xfail_strict"]
    assert tool["coverage"]["report"]["fail_under"] == 100
