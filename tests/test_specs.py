"""SPEC finds an agent, or says in one line why not."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from endstop import ConfigError
from endstop._specs import load_agent
from tests.loaded import modules_forgotten

MODULE = '''
from __future__ import annotations

import asyncio

from endstop import Agent, tool
from endstop.models.scripted import ScriptedModel
from helper_beside_it import NAME

Word = str

@tool
def search(query: Word) -> str:
    """Search."""
    return query

agent = Agent(ScriptedModel(["hi"]), tools=[search], name=NAME)
number = 3

def make():
    return agent

class Shelf:
    agent = agent

async def make_later():
    return agent

def make_nothing():
    return None

def make_trouble():
    raise RuntimeError("no key is set")
'''


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working folder with a few modules in it; what they leave in the interpreter is taken away again."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.chdir(tmp_path)
    package = tmp_path / "shop"
    package.mkdir()
    (package / "agents.py").write_text(MODULE)
    (tmp_path / "helper_beside_it.py").write_text("NAME = 'clerk'")
    (package / "helper_beside_it.py").write_text("NAME = 'clerk of the package'")
    (tmp_path / "leaves.py").write_text("import sys\nsys.exit('not today')")
    (tmp_path / "fails.py").write_text("import json\njson.loads('{')")
    (tmp_path / "needs.py").write_text("import nothing_of_this_name")
    with modules_forgotten(tmp_path):
        yield tmp_path


@pytest.mark.parametrize("name", ["agent", "make", "Shelf.agent"])
def test_an_agent_of_a_module_is_found(name: str) -> None:
    """By its name, as what a function returns, and inside something; modules are looked for in the working folder."""
    assert load_agent(f"shop.agents:{name}").name == "clerk"


def test_an_agent_of_a_package_is_found_by_its_folder(folder: Path) -> None:
    """Under the name that it has among the packages around it, so that relative imports work."""
    desk = folder / "shop" / "desk"
    desk.mkdir()
    (desk / "__init__.py").write_text("from .clerk import agent")
    (desk / "clerk.py").write_text(MODULE)
    assert load_agent("shop/desk:agent").name == "clerk of the package"
    assert sys.modules["desk"].__file__ == str(desk / "__init__.py")
    (folder / "shop" / "__init__.py").touch()
    load_agent(f"{folder}/shop/desk:agent")
    assert sys.modules["shop.desk"].__file__ == str(desk / "__init__.py")


def test_an_agent_of_a_file_is_found() -> None:
    """The file's own folder is where its imports are looked for, and its type hints can be resolved."""
    agent = load_agent("shop/agents.py:agent")
    assert agent.name == "clerk of the package"
    assert agent.model.name == "scripted"


@pytest.mark.parametrize(
    ("spec", "remedy"),
    [
        ("shop.agents", "write package.module:agent or file.py:agent"),
        (":agent", "write package.module:agent or file.py:agent"),
        ("shop.agents:", "write package.module:agent or file.py:agent"),
        ("missing.py:agent", "there is no file missing.py"),
        ("./shop:agent", "./shop is no folder of a package: it has no __init__.py"),
        ("shop:agent", "shop has no 'agent'; the agents in it are: none"),
        ("shop.agents:agents", "shop.agents has no 'agents'; the agents in it are: agent"),
        ("shop.agents:agent.nothing.here", "shop.agents has no 'agent.nothing.here'; the agents in it are: agent"),
        ("shops.agents:agent", "there is no module 'shops' in this folder or among the installed packages"),
        ("shop.agent:agent", "there is no module 'shop.agent' in this folder or among the installed packages"),
        ("shop.agents:number", "name an endstop.Agent, or a function that returns one; number gives something of type"),
        ("shop.agents:make_nothing", "make_nothing gives something of type NoneType"),
        ("shop.agents:make_later", "make_later is async; name an agent, or a plain function that returns one"),
        ("shop.agents:make_trouble", "loading it raised RuntimeError: no key is set"),
        ("leaves:agent", "loading it raised SystemExit: not today"),
        ("fails.py:agent", "loading it raised JSONDecodeError: Expecting property name"),
        ("needs:agent", "loading it raised ModuleNotFoundError: No module named 'nothing_of_this_name'"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(spec: str, remedy: str) -> None:
    """The error names SPEC, its value and the remedy, whatever the module does when it is imported."""
    with pytest.raises(ConfigError) as caught:
        load_agent(spec)
    assert str(caught.value).startswith(f"SPEC={spec!r} cannot be used: ")
    assert remedy in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_cause_is_kept() -> None:
    """A traceback leads into the adopter's own code."""
    with pytest.raises(ConfigError) as caught:
        load_agent("shop.agents:make_trouble")
    assert isinstance(caught.value.__cause__, RuntimeError)
