"""The documentation, executed: examples run, links lead somewhere, and what exists is described."""

from __future__ import annotations

import ast
import contextlib
import importlib
import inspect
import io
import re
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

from endstop.cutover.ledger import MemoryTurnLedger, use_ledger
from endstop.cutover.switches import use_switches

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cyclopts import App

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
DOCS = sorted(path for path in [README, *(ROOT / "docs").rglob("*.md")] if path.is_file())
PAGES = sorted({*DOCS, *ROOT.glob("*.md")})
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")

needs_readme = pytest.mark.skipif(not README.is_file(), reason="there is no README yet")


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A fenced block of a page: its language, the words after it, its text and the line where the text starts."""

    language: str
    words: str
    text: str
    line: int


def blocks(text: str) -> Iterator[Block]:
    """The fenced blocks of a page, in order; one that is never closed is an error."""
    lines = iter(enumerate(text.splitlines(), start=1))
    for number, line in lines:
        if opening := re.match(r"( *)(`{3,})(\w*) *(.*)", line):
            indent, fence, language, words = opening.groups()
            inside: list[str] = []
            for _, body in lines:
                if body.strip() == fence:
                    break
                inside.append(body.removeprefix(indent))
            else:
                raise AssertionError(f"the block that opens at line {number} is never closed")
            yield Block(language=language, words=words.strip(), text="\n".join(inside), line=number + 1)


def run_page(text: str, script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs a page's Python blocks in sequence as one program, in the script's folder.

    Where a block ```` ```text output ```` follows a Python block, it is what that block printed.
    A block ```` ```python no-run REASON ```` is only compiled.
    """
    module = ModuleType("__main__")
    module.__file__ = str(script)
    monkeypatch.setitem(sys.modules, "__main__", module)
    monkeypatch.chdir(script.parent)
    script.write_text("", encoding="utf-8")
    printed = ""
    for block in blocks(text):
        where = f"line {block.line}"
        if block.language == "text" and block.words == "output":
            assert printed.rstrip() == block.text.rstrip(), f"{where}: this is not what the block above prints"
        if block.language != "python":
            continue
        # Padded, so that a traceback and inspect find each line where the page has it.
        padded = "\n" * (block.line - 1) + block.text + "\n"
        code = compile(padded, str(script), "exec")
        if block.words:
            skipped = re.fullmatch(r"no-run\W+(\w.{9,})", block.words)
            assert skipped, f"{where}: a Python block runs, or is marked `no-run` with a reason: {block.words!r}"
            continue
        script.write_text(padded, encoding="utf-8")
        with contextlib.redirect_stdout(io.StringIO()) as output:
            exec(code, module.__dict__)
        printed = output.getvalue()


def slug(heading: str) -> str:
    """The anchor that a heading gets on GitHub."""
    plain = re.sub(r"[`*]|\[([^]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
    return re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")


def prose(text: str) -> str:
    """A page without its fenced blocks and code spans."""
    return re.sub(r"`[^`\n]*`", "", re.sub(r"(?ms)^ *(`{3,}).*?^ *\1 *$", "", text))


def broken_links(page: Path, text: str) -> list[str]:
    """The links of a page to files or headings that do not exist, or to places outside the repository."""
    broken: list[str] = []
    for target in re.findall(r"\]\(\s*<?([^)\s>]+)", prose(text)) + re.findall(r"(?m)^\[[^]]+\]:\s*(\S+)", prose(text)):
        if re.match(r"https?://[\w.-]+|mailto:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.is_relative_to(ROOT) or (path and not file.exists()):
            broken.append(target)
        elif anchor:
            content = text if file == page else file.read_text(encoding="utf-8")
            headings = re.findall(r"(?m)^#+ +(.*)$", re.sub(r"(?ms)^ *(`{3,}).*?^ *\1 *$", "", content))
            if anchor not in {slug(heading) for heading in headings}:
                broken.append(target)
    return broken


def commands() -> dict[str, str | None]:
    """Each command of the command line, those below another included, with its help."""

    def found(app: App, above: str = "") -> Iterator[tuple[str, str | None]]:
        for name in app:
            if name.startswith("-"):
                continue
            command = app[name]
            yield f"{above}{name}", inspect.getdoc(command.default_command) if command.default_command else command.help
            yield from found(command, f"{above}{name} ")

    return dict(found(importlib.import_module("endstop.cli").app))


@pytest.fixture(autouse=True)
def process_as_it_was() -> Iterator[None]:
    """A page may set the switches and the ledger of the process; what comes after it finds them as they were."""
    ledger, switches = use_ledger(MemoryTurnLedger()), use_switches(None)
    yield
    use_ledger(ledger)
    use_switches(switches)


def page_name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", DOCS, ids=page_name)
def test_every_python_block_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page's examples work as they stand, one after the other, and print what the page says."""
    run_page(page.read_text(encoding="utf-8"), tmp_path / "page.py", monkeypatch)


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_every_link_leads_somewhere(page: Path) -> None:
    """Links between pages and to headings are not broken; the network is not asked."""
    assert broken_links(page, page.read_text(encoding="utf-8")) == []


@needs_readme
def test_the_readme_says_how_to_start() -> None:
    """A newcomer finds the demo and the tests."""
    text = README.read_text(encoding="utf-8")
    assert "make demo" in text
    assert "make test" in text


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_every_make_target_named_exists(page: Path) -> None:
    """`make x` in a page is something that make can do."""
    named = re.findall(r"(?:`|^|\$ )make ([a-z-]+)", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert {name for name in named if not re.search(rf"(?m)^{name}:", MAKEFILE)} == set()


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_every_extra_named_exists(page: Path) -> None:
    """`endstop[x]` in a page can be installed."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = re.findall(r"endstop\[([\w,-]+)\]", page.read_text(encoding="utf-8"))
    assert {extra for names in named for extra in names.split(",")} <= project["optional-dependencies"].keys()


@needs_readme
def test_the_readme_names_the_oldest_python() -> None:
    """It is the one that pyproject.toml requires."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert f"Python {project['requires-python'].removeprefix('>=')}" in README.read_text(encoding="utf-8")


@needs_readme
def test_every_command_is_documented_and_has_help() -> None:
    """docs/cli.md has a heading or a code span for each, and `--help` says what it does."""
    text = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    found = commands()
    assert found
    assert {name for name in found if f"`endstop {name}" not in text} == set()
    assert {name for name, help_text in found.items() if not help_text} == set()


@needs_readme
def test_every_command_named_in_a_page_exists() -> None:
    """No page tells of a command that was renamed."""
    named = {name for page in DOCS for name in re.findall(r"(?m)(?:`|^|\$ )endstop ([a-z-]+)", page.read_text("utf-8"))}
    assert named <= commands().keys()


@needs_readme
def test_every_error_is_documented() -> None:
    """docs/errors.md names each class and its code."""
    text = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
    source = ast.parse((ROOT / "src" / "endstop" / "_errors.py").read_text(encoding="utf-8"))
    names = [node.name for node in source.body if isinstance(node, ast.ClassDef)]
    assert names
    errors = importlib.import_module("endstop._errors")
    missing = [
        word for name in names for word in (name, getattr(errors, name).code) if not re.search(rf"\b{word}\b", text)
    ]
    assert missing == []


def test_the_changelog_is_kept() -> None:
    """It has a place for what comes, and one for the version that is being made where that was released."""
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.search(r"(?m)^## \[Unreleased\]$", text)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("```python\nassert 1 == 2, 'false'\n```", "false"),
        ("```python\nx = 1\n```\n```python\nassert x == 2, 'kept'\n```", "kept"),
        ("```python\nprint(1)\n```\n```text output\n2\n```", "not what the block above prints"),
        ("```python no-run\nx\n```", "with a reason"),
        ("```python\nx", "never closed"),
    ],
)
def test_a_wrong_page_fails(text: str, complaint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An example that fails, prints something else or is skipped without a reason is seen."""
    with pytest.raises(AssertionError, match=complaint):
        run_page(text, tmp_path / "page.py", monkeypatch)


def test_a_right_page_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks share their names, run as the main program in a folder of their own, and may be skipped with a reason."""
    text = (
        "```python\nfrom pathlib import Path\nPath('x').touch()\n```\n```sh\nfalse\n```\n"
        "```python\nif __name__ == '__main__':\n    print(Path('x').exists())\n```\n```text output\nTrue\n```\n"
        "```python no-run: it needs a key of yours\nraise SystemExit\n```"
    )
    run_page(text, tmp_path / "page.py", monkeypatch)
    assert (tmp_path / "x").exists()


def test_broken_links_are_found() -> None:
    """Files, headings and places outside the repository; not what stands in code."""
    text = (
        "# A `b` c\n[1](nowhere.md) [2](#a-b-c) [3](#nothing) [4](Makefile) [5](/etc/hosts) [6](https://example.com)\n"
        "`[7](code.md)`\n```text\n[8](code.md)\n```\n[9]: missing.md\n"
    )
    assert broken_links(ROOT / "README.md", text) == ["nowhere.md", "#nothing", "/etc/hosts", "missing.md"]
