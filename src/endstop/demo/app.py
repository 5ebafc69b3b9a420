"""The command line of the demos. What each of them needs is imported when it is used."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Annotated

from cyclopts import App

from endstop._options import text_option

app = App(name="demo")
"""`endstop demo`, and each further demo as a command of it."""

app.command(
    "endstop.demo.research:research",
    name="research",
    help="Watch a LangGraph application research a question, bounded by a step budget.",
)


@app.default
def demo(
    *,
    small: Annotated[bool, text_option("Take the embedded 0.5B model (0.5 GB) instead of the 1.5B (1.1 GB).")] = False,
    replay: Annotated[bool, text_option("Replay a recording of the embedded model, whatever else there is.")] = False,
    record: Annotated[Path | None, text_option("Write what the model answers to this file.")] = None,
) -> int:
    """Watch a real model run out of its limits, hand over what it has, and go on.

    The model is the one that OPENAI_MODEL names, at OPENAI_BASE_URL with OPENAI_API_KEY, else the
    embedded Qwen2.5-Coder (fetched once), else a recording of that.
    """
    try:
        main = importlib.import_module("endstop.demo.main")
    except ModuleNotFoundError as error:
        raise ImportError(f"the demo needs {error.name}") from error
    code: int = main.demo(small=small, replay=replay, record=record)
    return code
