"""What SPEC means on the command line: where an agent or the like is found, and what is wrong where it is not."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

from typing_extensions import TypeIs

from endstop._agent import Agent
from endstop._errors import ConfigError

if TYPE_CHECKING:
    from types import ModuleType, TracebackType

Found = TypeVar("Found")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sought(Generic[Found]):
    """What a SPEC is to name, and how its errors call it: an `article` with a `noun`, and the `kind` of object."""

    article: str
    noun: str
    kind: str
    is_one: Callable[[object], TypeIs[Found]]


def _is_agent(found: object) -> TypeIs[Agent[object]]:
    return isinstance(found, Agent)


_AGENT = Sought(article="an", noun="agent", kind="an endstop.Agent", is_one=_is_agent)


def load_agent(spec: str) -> Agent[object]:
    """The agent that SPEC names, or that the function without arguments that it names returns, as `load` finds it.

    Raises:
        ConfigError: there is no such agent; the message says why, whatever the module raised.
    """
    return load(spec, _AGENT)


def load(spec: str, sought: Sought[Found]) -> Found:
    """What SPEC names, or what the function without arguments that it names returns.

    SPEC is `package.module:name`, `file.py:name` or `folder/package:name`. The working folder, or the one that holds
    the file or the package, is where modules are looked for first.

    Raises:
        ConfigError: there is nothing of that sort; the message says why, whatever the module raised.
    """
    noun = sought.noun
    place, _, name = spec.rpartition(":")
    if not place or not name:
        raise ConfigError("SPEC", spec, f"write package.module:{noun} or file.py:{noun}")
    if place.endswith(".py") and not Path(place).is_file():
        raise ConfigError("SPEC", spec, f"there is no file {place}")
    if "/" in place and not place.endswith(".py") and not _is_package(Path(place)):
        raise ConfigError("SPEC", spec, f"{place} is no folder of a package: it has no __init__.py")
    with _Loading(spec, place):
        module = _import(place)
        found: object = module
        for part in name.split("."):
            found = getattr(found, part, None)
    if found is None:
        others = ", ".join(key for key, value in vars(module).items() if sought.is_one(value)) or "none"
        raise ConfigError("SPEC", spec, f"{place} has no {name!r}; the {noun}s in it are: {others}")
    if sought.is_one(found):
        return found
    if inspect.iscoroutinefunction(found):
        remedy = f"{name} is async; name {sought.article} {noun}, or a plain function that returns one"
        raise ConfigError("SPEC", spec, remedy)
    made: object = found
    if callable(found):
        with _Loading(spec, place):
            made = found()
    if sought.is_one(made):
        return made
    kind = type(made).__name__
    remedy = f"name {sought.kind}, or a function that returns one; {name} gives something of type {kind}"
    raise ConfigError("SPEC", spec, remedy)


class _Loading:
    """Makes one `ConfigError` of whatever the adopter's code raises while it is loaded."""

    def __init__(self, spec: str, place: str) -> None:
        self._spec = spec
        self._place = place

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, ModuleNotFoundError) and error.name and f"{self._place}.".startswith(f"{error.name}."):
            remedy = f"there is no module {error.name!r} in this folder or among the installed packages"
            raise ConfigError("SPEC", self._spec, remedy) from error
        if isinstance(error, Exception | SystemExit):
            said = " ".join(str(error).split())
            remedy = f"loading it raised {type(error).__name__}: {said} (--debug shows where)"
            raise ConfigError("SPEC", self._spec, remedy) from error


def _import(place: str) -> ModuleType:
    if place.endswith(".py"):
        return _import_file(Path(place))
    if "/" in place:
        return _import_folder(Path(place))
    return _import_module(place, Path.cwd())


def _import_module(name: str, folder: Path) -> ModuleType:
    sys.path.insert(0, str(folder))
    return importlib.import_module(name)


def _import_folder(path: Path) -> ModuleType:
    """Import a package by its folder, under the name that it has among the packages around it."""
    folder = path.resolve()
    name = folder.name
    while _is_package(folder.parent):
        folder = folder.parent
        name = f"{folder.name}.{name}"
    return _import_module(name, folder.parent)


def _is_package(folder: Path) -> bool:
    return (folder / "__init__.py").is_file()


def _import_file(path: Path) -> ModuleType:
    sys.path.insert(0, str(path.resolve().parent))
    found = importlib.util.spec_from_file_location(f"_endstop_{path.stem}", path)
    assert found is not None
    assert found.loader is not None, "a .py file has a loader"
    module = importlib.util.module_from_spec(found)
    # The type hints of its tools are resolved through the module's name.
    sys.modules[found.name] = module
    found.loader.exec_module(module)
    return module
