"""The demo: a real model works over this project's own pages, runs out of rounds, and is continued.

The model is the endpoint that the usual variables name, else the embedded one, else a recording of it.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from endstop._agent import Agent
from endstop._errors import ConfigError
from endstop._limits import PlanLimits, Spent
from endstop._options import OutputOptions
from endstop._results import AgentResult
from endstop._tools import tool
from endstop.demo.library import Library
from endstop.demo.server import ServerUnavailable, embedded_server
from endstop.demo.weights import MODEL_FILES, ModelSize, WeightsUnavailable, cached_weights, ensure_weights
from endstop.models.base import Model
from endstop.models.openai import OpenAIModel
from endstop.models.schema_tools import SchemaTools
from endstop.models.scripted import RecordingModel, ReplayModel
from endstop.views.follow import follow
from endstop.views.words import Redactor, printable, spent_text

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from endstop._stream import RunStream

QUESTION = "Which rungs can the text of a truncated run come from?"
"""A question that the project's own pages answer, in about five rounds of the embedded model."""

INSTRUCTIONS = """\
You answer a question about a folder of documents. You know nothing about it yet: find the answer in the documents.
First search, then open the best section, then quote the sentence that answers the question, then answer in one or two \
sentences with what the quote says. Never repeat a call."""

PAGES_ON_GRAPHS = frozenset(
    {"audit.md", "bound.md", "cases.md", "cutover.md", "envelope.md", "facade.md", "ledger.md", "middleware.md"}
    | {"projection.md", "replay.md", "research.md"}
)
"""Pages that the demo does not search: they speak of truncated runs of another kind, and a small model takes one for
the other."""

FIRST_LIMITS = PlanLimits(max_model_rounds=3, max_seconds=120)
"""Too few rounds to finish: two of work, and the one that is held back for the answer."""

SECOND_LIMITS = PlanLimits(max_model_rounds=8, max_seconds=240)
"""Enough to finish, and with what loading the model takes within five minutes."""

ANSWER_TOKENS = 160
"""The most that the embedded model may write at once: at 9 tokens a CPU-second, about ten seconds."""

RECORDING = Path(__file__).with_name("recording.jsonl")
"""What the embedded model answered to `QUESTION`."""

REPLAY_PACE = 0.1
"""How long a replayed answer takes, as a share of the time that it took the model."""

INTERRUPTED = 130
"""The exit code after Ctrl-C, as of every command."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where the answers come from: `says` is the demo's first line, `opened` gives the model while it is open."""

    says: str
    opened: AbstractAsyncContextManager[Model]


def demo(*, small: bool = False, replay: bool = False, record: Path | None = None) -> int:
    """Run both parts of the demo, and return the exit code. The options are those of `endstop demo`.

    Raises:
        ConfigError: the answers cannot be written where `record` says.
    """
    if record is not None and (record.is_dir() or not os.access(record.absolute().parent, os.W_OK)):
        raise ConfigError("--record", str(record), "name a file in a folder that can be written to")
    return anyio.run(_run, source_of(small=small, replay=replay), record)


async def _run(source: Source, record: Path | None) -> int:
    out = Console(highlight=False, markup=False)
    out.print(printable(Redactor(os.environ)(source.says)), style="bold", soft_wrap=True)
    with open_library() as library:
        out.print(
            f"\nAn agent answers a question from {len(library)} sections of this project's documents with three tools: "
            "search, open and quote. A round is one request to the model, and the tool calls that it asks for.\n\n"
            f"The question: {QUESTION}"
        )
        async with source.opened as model:
            return await _two_parts(librarian(model if record is None else RecordingModel(model, record), library), out)


def librarian(model: Model, library: Library) -> Agent[str]:
    """The agent of the demo."""
    tools = [tool(read_only=True)(each) for each in (library.search, library.open, library.quote)]
    return Agent(model, tools=tools, instructions=INSTRUCTIONS, name="librarian")


async def _two_parts(agent: Agent[str], out: Console) -> int:
    """The run that its limits stop, and its continuation; the exit code."""
    _title(out, f"1 of 2: at most {_bounds(FIRST_LIMITS)}, which is too little on purpose")
    first = await _followed(agent.stream(QUESTION, limits=FIRST_LIMITS), FIRST_LIMITS, Spent())
    if first.stop_reason == "cancelled":
        return INTERRUPTED
    if not first.truncated:
        out.print("\nThis model completed before its limits, so there is nothing to continue.")
        return 0
    stored = first.to_json()
    out.print(
        "\nThe run was stopped inside its limits. The best text at hand is handed over, marked as partial so that "
        f"nobody takes it for the whole answer, and all that was done is kept: {len(stored):,} characters of JSON."
    )
    _title(out, f"2 of 2: the same run, from that JSON, to at most {_bounds(SECOND_LIMITS)} in all")
    run = agent.resume_stream(AgentResult.from_json(stored), limits=SECOND_LIMITS)
    second = await _followed(run, SECOND_LIMITS, first.spent)
    if second.stop_reason == "cancelled":
        return INTERRUPTED
    if second.truncated:
        out.print("\nStopped again: not every model gets there. It ended inside its limits all the same, and says why.")
    out.print(f"\nIn all: {_spent(second.spent)}.\nIn part 1: {_spent(first.spent)}; none of it was done again.")
    return 0


async def _followed(run: RunStream[str], limits: PlanLimits, spent: Spent) -> AgentResult[object]:
    def on_interrupt() -> None:
        Console(stderr=True).print("ending the run in order; Ctrl-C again ends it at once")

    return await follow(
        lambda: run, OutputOptions().view(sys.stdout, limits, spent), save=None, on_interrupt=on_interrupt
    )


# -- where the answers come from ---------------------------------------------------------------------------------------


def source_of(*, small: bool = False, replay: bool = False) -> Source:
    """The model that was asked for, or the best that can be had; weights that are missing are fetched.

    Raises:
        ConfigError: the environment names an endpoint, but not all of it or with a value that cannot be used.
    """
    if replay:
        return _replayed("as asked")
    found = model_source(small=small)
    return _replayed(found) if isinstance(found, str) else found


def model_source(*, small: bool = False) -> Source | str:
    """The best real model that can be had, or why there is none; weights that are missing are fetched.

    Raises:
        ConfigError: the environment names an endpoint, but not all of it or with a value that cannot be used.
    """
    if not small and (os.environ.get("OPENAI_MODEL") or os.environ.get("OPENAI_BASE_URL")):
        model = OpenAIModel.from_env()
        return Source(says=f"Model: {model!r}, which the environment names", opened=model)
    if importlib.util.find_spec("xllamacpp") is None:  # pragma: no cover - the tests have every extra
        return "its server is not installed (pip install endstop[demo])"
    size: ModelSize = "0.5b" if small else "1.5b"
    try:
        weights = _weights(size)
    except WeightsUnavailable as error:
        return f"its weights are not in the cache and could not be had ({'; '.join(error.tried)})"
    says = f"Model: Qwen2.5-Coder-{size.upper()}-Instruct Q4_K_M, on this machine, with a server of its own on loopback"
    return Source(says=says, opened=embedded_model(weights))


def _replayed(why: str) -> Source:
    says = f"Replaying a recording of Qwen2.5-Coder-1.5B-Instruct Q4_K_M at {1 / REPLAY_PACE:g} times its speed: {why}"
    # The pages may have changed since: the answers are the recorded ones, the tools work on today's pages.
    return Source(says=says, opened=nullcontext(ReplayModel(RECORDING, strict=False, pace=REPLAY_PACE)))


def _weights(size: ModelSize) -> Path:
    cached = cached_weights(size)
    if cached is not None:
        return cached
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    file, err = MODEL_FILES[size], Console(stderr=True)
    if not err.is_terminal:
        err.print(f"fetching {file.name} ({decimal(file.size_bytes)}), once", soft_wrap=True)
        return ensure_weights(size)
    with Progress(*columns, console=err, transient=True) as bar:
        task = bar.add_task(f"fetching {file.name}, once", total=file.size_bytes)

        def show(done_bytes: int, total_bytes: int) -> None:
            bar.update(task, completed=done_bytes, total=total_bytes)

        return ensure_weights(size, progress=show)


@asynccontextmanager
async def embedded_model(weights: Path) -> AsyncGenerator[SchemaTools]:
    """The model of a file of weights, served by a child process until the block is left.

    Raises:
        ServerUnavailable: the child did not start.
    """
    try:
        async with (
            embedded_server(weights) as server,
            OpenAIModel(
                server.model_name, base_url=server.base_url, temperature=0, extra_body={"max_tokens": ANSWER_TOKENS}
            ) as served,
        ):
            yield SchemaTools(served)
    except ServerUnavailable as error:
        error.add_note("a recording of the embedded model can be watched without it: endstop demo --replay")
        raise


# -- words -------------------------------------------------------------------------------------------------------------


def open_library() -> Library:
    """What the demo searches: the pages on the kernel, which its question is about."""
    return Library.from_folder(pages(), hits=3, without=PAGES_ON_GRAPHS)


def pages() -> Path:
    """The project's pages: packed into the wheel, or in the checkout."""
    packed = Path(__file__).with_name("docs")
    return packed if packed.is_dir() else Path(__file__).parents[3] / "docs"


def _title(out: Console, text: str) -> None:
    out.print(f"\n{text}\n", style="bold cyan")


def _bounds(limits: PlanLimits) -> str:
    return f"{limits.max_model_rounds} rounds and {limits.max_seconds:g} seconds"


def _spent(spent: Spent) -> str:
    return spent_text(spent, PlanLimits(max_model_rounds=None))
