"""What a function can get at: the objects and the names in its code, found without running it."""

from __future__ import annotations

import contextlib
import functools
from types import CodeType, FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_MOST_ITEMS = 64
"""Members of a captured container that are looked at."""

_NOTHING: Mapping[str, object] = {}


def reachable(function: object) -> Iterator[object]:
    """The objects that a function's code names or has captured, each once.

    Functions that it has captured, or that its module has and it calls, are followed, and so are wrappers and partials.
    Nothing is called, and no property is read. What a function is handed when it runs cannot be seen.
    """
    seen: set[int] = set()
    for _, near in _functions(function):
        for found in near:
            for one in (found, *_items(found)):
                if id(one) not in seen:
                    seen.add(id(one))
                    yield one


def mentions(function: object, word: str) -> bool:
    """Whether the code names this attribute, or gives this keyword argument, anywhere."""
    return any(
        word in code.co_names or any(isinstance(const, tuple) and word in const for const in code.co_consts)
        for plain, _ in _functions(function)
        for code in _codes(plain.__code__)
    )


def takes(function: object, word: str) -> bool:
    """Whether the function has a parameter of this name, or reads an attribute of this name."""
    plain, _ = _unwrapped(function)
    if plain is None:
        return False
    code = plain.__code__
    return word in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount] or word in code.co_names


def _functions(function: object) -> Iterator[tuple[FunctionType, list[object]]]:
    """The function, those that it has captured, and those of its module that it calls, each with what it names."""
    waiting: list[object] = [function]
    seen: set[FunctionType] = set()
    while waiting:
        plain, owner = _unwrapped(waiting.pop())
        if plain is not None and plain not in seen:
            seen.add(plain)
            captured, named = _captured(plain), list(_named(plain, owner))
            yield plain, captured + named
            waiting += captured
            waiting += (found for found in named if getattr(found, "__module__", None) == plain.__module__)


def _unwrapped(function: object) -> tuple[FunctionType | None, object]:
    """The plain function below wrappers, and the object whose method it is; none where there is no Python code."""
    owner: object = None
    while not isinstance(function, FunctionType) or "__wrapped__" in vars(function):
        if isinstance(function, functools.partial):
            function = function.func
        elif isinstance(function, MethodType):
            owner, function = function.__self__, function.__func__
        elif isinstance(function, FunctionType):
            function = vars(function)["__wrapped__"]
        else:
            call = vars(type(function)).get("__call__")
            return (call, function) if isinstance(call, FunctionType) else (None, None)
    return function, owner


def _captured(function: FunctionType) -> list[object]:
    cells: list[object] = []
    for cell in function.__closure__ or ():
        with contextlib.suppress(ValueError):  # a variable that is not set yet
            cells.append(cell.cell_contents)
    return cells


def _named(function: FunctionType, owner: object) -> Iterator[object]:
    """The globals, the members of modules and the members of its own object that a function's code names."""
    for code in _codes(function.__code__):
        for name in code.co_names:
            if name in function.__globals__:
                found = function.__globals__[name]
                yield found
                if isinstance(found, ModuleType):
                    members = vars(found)
                    yield from (members[other] for other in code.co_names if other in members)
            if owner is not None:
                yield from _member(owner, name)


def _codes(code: CodeType) -> Iterator[CodeType]:
    """A function's code, and that of the functions inside it."""
    yield code
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield from _codes(const)


def _member(owner: object, name: str) -> Iterator[object]:
    """The attribute or the method of this name, if it is stored and not computed."""
    stored: Mapping[str, object] = getattr(owner, "__dict__", _NOTHING)
    if name in stored:
        yield stored[name]
        return
    for kind in type(owner).__mro__:
        if name in vars(kind):
            member = vars(kind)[name]
            if isinstance(member, FunctionType):
                yield MethodType(member, owner)
            elif isinstance(member, MemberDescriptorType):  # of a class with slots
                with contextlib.suppress(AttributeError):
                    yield member.__get__(owner)
            return


def _items(found: object) -> list[object]:
    if isinstance(found, dict):
        return list(cast("dict[object, object]", found).values())[:_MOST_ITEMS]  # what they hold is looked at, not used
    if isinstance(found, list | tuple):
        return list(cast("list[object]", found))[:_MOST_ITEMS]  # they are looked at, not used
    return []
