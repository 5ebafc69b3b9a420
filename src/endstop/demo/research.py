"""The demo of a LangGraph application: `examples/research_assistant`, which the wheel carries inside this package."""

from __future__ import annotations

import importlib.util
import os
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from anyio.from_thread import start_blocking_portal
from cyclopts import Parameter
from rich.console import Console

from endstop._limits import check_count
from endstop._options import text_option
from endstop.demo.main import model_source
from endstop.views.words import Redactor, printable

if TYPE_CHECKING:
    from types import ModuleType

    from endstop.models.base import Model

PACKAGE = "research_assistant"
"""The name under which the assistant is imported, from wherever it stands."""


def research(
    question: Annotated[
        str | None, Parameter(help="What to find out; left out, a point on which its documents disagree.")
    ] = None,
    /,
    *,
    bench: Annotated[
        bool, text_option("Print how five ways to bound a stubborn run end it, and nothing else.")
    ] = False,
    max_steps: Annotated[float | None, text_option("End the run honestly after this many node executions.")] = None,
    detect_loops: Annotated[bool, text_option("End the run honestly where its team only repeats itself.")] = False,
    browse: Annotated[bool, text_option("Let it use a browser on pages of its own, too.")] = False,
    scripted: Annotated[bool, text_option("Take answers written beforehand, whatever else there is.")] = False,
    small: Annotated[bool, text_option("Take the embedded 0.5B model instead of the 1.5B.")] = False,
) -> int:
    """Watch a LangGraph application research a question, bounded by a step budget.

    The model is the one that OPENAI_MODEL names, else the embedded one, else scripted answers to the demo's own
    question. The search is over documents that come with it, or the web's where TAVILY_API_KEY is set.
    The variables ENDSTOP_ENABLE_STEP_BUDGET, ENDSTOP_MAX_TOTAL_STEPS and their kin bound it, too.
    """
    assistant = load_assistant()
    steps = int(max_steps) if max_steps is not None and max_steps.is_integer() else max_steps
    check_count("--max-steps", steps, required=False)
    console, redact = Console(highlight=False, markup=False, soft_wrap=True), Redactor(os.environ)

    def write(text: str) -> None:
        console.print(printable(redact(text)))

    if bench:
        write(assistant.bench_table())
        return 0
    found = "as asked" if scripted else model_source(small=small)
    with ExitStack() as stack:
        portal = stack.enter_context(start_blocking_portal())
        model: Model | None = None
        if isinstance(found, str):
            write(f"Model: none, its answers were written beforehand for a question of their own: {found}")
        else:
            write(found.says)
            model = stack.enter_context(portal.wrap_async_context_manager(found.opened))
        assistant.demo(
            question,
            model=model,
            portal=portal,
            browse=browse,
            max_steps=steps,
            detect_loops=detect_loops,
            write=write,
        )
    return 0


def load_assistant() -> ModuleType:
    """The assistant's package: packed into the wheel, or in the checkout.

    Raises:
        ImportError: a package that it needs is not installed.
    """
    if PACKAGE in sys.modules:
        return sys.modules[PACKAGE]
    packed = Path(__file__).with_name(PACKAGE)
    folder = packed if packed.is_dir() else Path(__file__).parents[3] / "examples" / PACKAGE
    spec = importlib.util.spec_from_file_location(
        PACKAGE, folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    assert spec is not None, "a file that ends in .py has a loader"
    assert spec.loader is not None, "a file that ends in .py has a loader"
    module = importlib.util.module_from_spec(spec)
    sys.modules[PACKAGE] = module  # before it runs: its modules import each other through it
    try:
        spec.loader.exec_module(module)
    except ModuleNotFoundError as error:
        del sys.modules[PACKAGE]
        raise ImportError(f"the research assistant needs {error.name}") from error
    return module
