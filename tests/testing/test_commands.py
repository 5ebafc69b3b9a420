"""The command `conformance` checks the loop that it is given, line by line, and its exit code says how that went."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from endstop.cli import main
from endstop.testing.limits import ALL_CHECKS
from tests.loaded import modules_forgotten

RUNNERS = '''
from dataclasses import replace

from endstop.testing.limits import KernelRunner, MissingFeature


class Priceless(KernelRunner):
    """It knows no prices."""

    async def run(self, scenario):
        if scenario.limits.max_cost is not None:
            raise MissingFeature("it knows no prices")
        return await super().run(scenario)


class Silent(Priceless):
    """It does not say why it ends either."""

    async def run(self, scenario):
        return replace(await super().run(scenario), limit=None)


class Broken(KernelRunner):
    """It has a fault of its own."""

    async def run(self, scenario):
        raise LookupError("no model")


priceless = Priceless()
silent = Silent()
broken = Broken()
'''

Conformance = Callable[..., tuple[int, list[str], str]]


@pytest.fixture
def conformance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Conformance]:
    """The command in a folder with runners: its exit code, and what it prints on standard output and error."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runners.py").write_text(RUNNERS)

    def run(*arguments: str) -> tuple[int, list[str], str]:
        code = main(["conformance", *arguments])
        out, err = capsys.readouterr()
        return int(code), out.splitlines(), err

    with modules_forgotten(tmp_path):
        yield run


def test_endstop_itself_is_checked_where_no_loop_is_named(conformance: Conformance) -> None:
    """One line a check, between the name of the loop and a summary."""
    code, lines, err = conformance()
    assert (code, err) == (0, "")
    assert lines[0].startswith("endstop ")
    assert [line.split()[:2] for line in lines[1:-1]] == [["holds", check.name] for check in ALL_CHECKS]
    assert lines[-1] == "18 of 18 hold, 0 fail, 0 missing"


@pytest.mark.parametrize(
    ("arguments", "code", "summary"),
    [
        (["runners:priceless"], 1, "17 of 18 hold, 0 fail, 1 missing"),
        (["runners.py:Priceless", "--allow-missing"], 0, "17 of 18 hold, 0 fail, 1 missing"),
        (["runners.py:silent", "--allow-missing"], 1, "16 of 18 hold, 1 fail, 1 missing"),
    ],
)
def test_the_exit_code_says_how_it_went(
    arguments: list[str], code: int, summary: str, conformance: Conformance
) -> None:
    """A runner is an object, or a class or function that makes one; what is missing can be let pass, a failure not."""
    ended, lines, _ = conformance(*arguments)
    assert (ended, lines[-1]) == (code, summary)
    assert any(line.startswith("missing  cost") and line.endswith(": it knows no prices") for line in lines)


@pytest.mark.parametrize(
    ("spec", "remedy"),
    [
        ("runners", "write package.module:runner or file.py:runner"),
        ("runners:runner", "runners has no 'runner'; the runners in it are: priceless, silent, broken"),
        ("runners:RUNNER.name", "the runners in it are: priceless, silent, broken"),
        ("runners:replace", "loading it raised TypeError"),
        (
            "runners:__name__",
            "name an object with name, run and approve, or a function that returns one; __name__ gives",
        ),
    ],
)
def test_a_spec_that_names_no_runner_is_misuse(spec: str, remedy: str, conformance: Conformance) -> None:
    """The error says what would do."""
    code, lines, err = conformance(spec)
    assert (code, lines) == (2, [])
    assert err.startswith(f"endstop: error [config]: SPEC={spec!r} cannot be used: ")
    assert remedy in err


def test_a_fault_of_a_runner_is_told(conformance: Conformance) -> None:
    """With the check in which it came; it is no verdict."""
    code, lines, err = conformance("runners.py:broken")
    assert (code, len(lines)) == (1, 1)
    assert err.startswith("endstop: error [LookupError]: no model\nraised by endstop ")
    assert " in the check model_rounds\n" in err
