"""What an import costs and who may import what: the layers of our own modules are import-linter's (`make check`)."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "endstop"
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))

COMES_WITH_THE_KERNEL = {
    *("anyio", "idna", "sniffio"),
    *("pydantic", "pydantic_core", "annotated_types", "typing_inspection"),
    "typing_extensions",
}
"""anyio and pydantic with what they depend on themselves."""

PYDANTIC = {"pydantic", "pydantic_core"}

MAY_IMPORT: dict[str, set[str]] = {
    "": {"anyio", "typing_extensions"},
    "_audit_cli": {"cyclopts"},
    "_cutover_cli": {"cyclopts"},
    "_outputs": PYDANTIC,
    "_pauses": {"jsonschema"},
    "_prices": {"genai_prices"},
    "_state": PYDANTIC,
    "_tools": PYDANTIC,
    "_options": {"cyclopts", "rich"},
    "cli": {"cyclopts", "rich"},
    "cutover": {"langchain", "langchain_core", "langgraph"} | PYDANTIC,
    "demo": {"cyclopts", "httpx", "rich", "xllamacpp"} | PYDANTIC,
    "langchain_tools": {"langchain_core"} | PYDANTIC,
    "langgraph": {"langchain", "langchain_core", "langgraph", "networkx"} | PYDANTIC,
    "models": PYDANTIC,
    "models.langchain": {"langchain_core"},
    "models._langchain_codec": {"langchain_core"},
    "models._openai_clients": {"httpx"},
    "models._openai_http": {"h11", "httpx"},
    "models.openai": {"httpx", "httpx_sse"},
    "testing": PYDANTIC,
    "testing.commands": {"cyclopts", "rich"},
    "views": {"rich"} | PYDANTIC,
}
"""Module or package -> the third-party packages that it and what it contains may import, as well as its parents'."""


def imported_by(statement: str) -> set[str]:
    """The top-level modules that a fresh interpreter loads for one statement, the standard library's left out."""
    program = (
        f"import json, sys; before = set(sys.modules); {statement}; print(json.dumps([*set(sys.modules) - before]))"
    )
    done = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in json.loads(done.stdout)} - sys.stdlib_module_names
    return {name for name in loaded if not name.startswith("_sysconfigdata")}


def modules() -> dict[str, Path]:
    """Every module of the package by its name below `endstop` (the package itself is the empty name)."""
    found: dict[str, Path] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def third_party_imports(source: str) -> set[str]:
    """The top-level third-party packages that a module imports anywhere."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=aliases):
                names |= {alias.name for alias in aliases}
            case ast.ImportFrom(module=str(module), level=0):
                names.add(module)
    return {name.partition(".")[0] for name in names} - sys.stdlib_module_names - {"endstop"}


def allowed_for(module: str) -> set[str]:
    """What a module may import, by itself and through the packages that contain it."""
    places = [place for place in MAY_IMPORT if not place or f"{module}.".startswith(f"{place}.")]
    return set().union(*(MAY_IMPORT[place] for place in places))


def test_importing_the_package_loads_nothing_but_anyio_and_pydantic() -> None:
    """A kernel user pays for no provider, no web framework, no command line and no price table.

    How long it takes is measured by the benchmarks; what is loaded is what decides it.
    """
    loaded = imported_by("import endstop")
    assert "endstop" in loaded
    assert loaded - {"endstop"} <= COMES_WITH_THE_KERNEL


def test_a_heavy_import_would_be_seen() -> None:
    """The measurement itself works."""
    assert "rich" in imported_by("import rich")


@pytest.mark.parametrize("module", modules())
def test_a_module_imports_only_the_packages_that_it_may(module: str) -> None:
    """Bytes are parsed, models called and people shown things in a few places; nothing spreads from there."""
    assert third_party_imports(modules()[module].read_text(encoding="utf-8")) <= allowed_for(module)


def test_a_package_has_the_rights_of_its_parents_and_not_of_its_neighbours() -> None:
    """`models` opens pydantic to `models.openai`, which alone may use httpx; `models_x` is no part of it."""
    assert allowed_for("_agent") == {"anyio", "typing_extensions"}
    assert {"httpx", "pydantic", "anyio"} <= allowed_for("models.openai")
    assert not {"httpx"} & allowed_for("models.base")
    assert not {"pydantic"} & allowed_for("models_x")
    assert third_party_imports("import os, httpx.sse\ndef f():\n    from rich.live import Live") == {"httpx", "rich"}


def declared() -> dict[str, str]:
    """The packages that an installation brings, extras included, each with its lower bound."""
    extras = PYPROJECT["project"]["optional-dependencies"].values()
    requirements = [*PYPROJECT["project"]["dependencies"], *(name for extra in extras for name in extra)]
    return dict(requirement.split(">=") for requirement in requirements if not requirement.startswith("endstop["))


def test_every_package_that_may_be_imported_is_declared() -> None:
    """What an installation does not bring cannot be imported."""
    names = {name.replace("-", "_") for name in declared()}
    assert set().union(*MAY_IMPORT.values()) - {"pydantic_core"} <= names


def test_every_lower_bound_is_the_one_that_is_tested() -> None:
    """`make lowest` installs requirements/lowest.txt; a bound below it would be a promise that nobody keeps."""
    lock = (ROOT / "requirements" / "lowest.txt").read_text(encoding="utf-8")
    pinned = dict(re.findall(r"(?m)^([\w-]+)==([\w.]+)", lock))
    assert {
        name: f"{pinned[name]}." for name, bound in declared().items() if not f"{pinned[name]}.".startswith(f"{bound}.")
    } == {}


def test_every_module_has_a_layer() -> None:
    """import-linter checks the modules that it is told of; one that it is not told of could import anything."""
    layers = re.findall(r"endstop\.([\w.]+)", " ".join(PYPROJECT["tool"]["importlinter"]["contracts"][0]["layers"]))
    homeless = [name for name in modules() if not any(f"{name}.".startswith(f"{layer}.") for layer in layers)]
    assert set(homeless) <= {"", "models", "testing"}


def test_the_package_of_models_imports_none_of_them() -> None:
    """It has no layer of its own, because the kernel imports `models.base` through it."""
    tree = ast.parse(modules()["models"].read_text(encoding="utf-8"))
    assert not [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
