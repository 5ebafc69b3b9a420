"""The demo: a real model works over this project's own pages, runs out of rounds, and is continued.

The model is the endpoint that the usual variables name, else the embedded one, else a recording of it.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import anyio
from cyclopts import Parameter
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from endstop._agent import Agent
from endstop._limits import PlanLimits, Spent
from endstop._options import OutputOptions
from endstop._results import AgentResult
from endstop._tools import tool
from endstop.demo.library import Library
from endstop.demo.server import embedded_server
from endstop.demo.weights import MODEL_FILES, WeightsUnavailable, ensure_weights
from endstop.models.base import Model
from endstop.models.openai import OpenAIModel
from endstop.models.schema_tools import SchemaTools
from endstop.models.scripted import RecordingModel, ReplayModel
from endstop.views.follow import follow

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from endstop._stream import RunStream

QUESTION = "Which rungs can the text of a truncated run come from?"
"""A question that the project's own pages answer, in about five rounds of the embedded model."""

INSTRUCTIONS = """\
You answer a question about a folder of documents. You know nothing about it yet: find the answer in the documents.
First search, then open the best section, then quote the sentence that answers the question, then answer in one or two \
sentences with what the quote says. Never repeat a call."""

FIRST_LIMITS = PlanLimits(max_model_rounds=3)
"""Too few rounds to finish: two of work, and the one that is held back for the answer."""

SECOND_LIMITS = PlanLimits(max_model_rounds=8)

ANSWER_TOKENS = 160
"""The most that the embedded model may write at once: at 9 tokens a CPU-second, about ten seconds."""

RECORDING = Path(__file__).with_name("recording.jsonl")
"""What the embedded model answered to `QUESTION`."""

Size = Literal["1.5b", "0.5b"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where the demo's answers come from: `says` is the demo's first line, `opened` gives the model while it is open."""

    says: str
    opened: AbstractAsyncContextManager[Model]


def demo(
    *,
    small: Annotated[
        bool, Parameter(help="Take the embedded 0.5B model (0.5 GB) instead of the 1.5B (1.1 GB).")
    ] = False,
    replay: Annotated[bool, Parameter(help="Replay the recording, whatever else there is.")] = False,
    record: Annotated[Path | None, Parameter(help="Write what the model answers to this file.")] = None,
) -> int:
    """Watch a real model run out of its limits, hand over what it has, and go on.

    The model is that of OPENAI_BASE_URL, OPENAI_API_KEY and OPENAI_MODEL where they are set, else the
    embedded Qwen2.5-Coder (fetched once), else a recording of it.
    """
    out = Console(highlight=False, soft_wrap=True)
    source = _source("0.5b" if small else "1.5b", out, replay=replay)
    return anyio.run(_run, source, out, record)


async def _run(source: Source, out: Console, record: Path | None) -> int:
    out.print(source.says, style="bold", markup=False)
    library = Library.from_folder(_pages(), hits=3)
    async with source.opened as model:
        agent = Agent(
            model if record is None else RecordingModel(model, record),
            tools=[tool(read_only=True)(each) for each in (library.search, library.open, library.quote)],
            instructions=INSTRUCTIONS,
            name="librarian",
        )
        _title(out, f"1. {QUESTION}  (at most {FIRST_LIMITS.max_model_rounds} rounds)")
        first = await _followed(agent.stream(QUESTION, limits=FIRST_LIMITS), FIRST_LIMITS, Spent(), out)
        if not first.truncated:
            return 0
        stored = first.to_json()
        _title(out, f"2. The same run from its JSON, continued  (at most {SECOND_LIMITS.max_model_rounds} rounds)")
        run = agent.resume_stream(AgentResult.from_json(stored), limits=SECOND_LIMITS)
        await _followed(run, SECOND_LIMITS, first.spent, out)
    return 0


async def _followed(run: RunStream[str], limits: PlanLimits, spent: Spent, out: Console) -> AgentResult[object]:
    view = OutputOptions().view(sys.stdout, limits, spent)
    return await follow(lambda: run, view, save=None, on_interrupt=lambda: out.print("ending the run in order"))


def _source(size: Size, out: Console, *, replay: bool) -> Source:
    """The best model that can be had."""
    if replay:
        return _replayed("as asked")
    if os.environ.get("OPENAI_BASE_URL") or os.environ.get("OPENAI_API_KEY"):
        model = OpenAIModel.from_env()
        return Source(says=f"Model: {model.name}, at the endpoint that the environment names", opened=_open(model))
    if importlib.util.find_spec("xllamacpp") is None:
        return _replayed("its server is not installed here (pip install endstop[demo])")
    try:
        weights = _weights(size, out)
    except WeightsUnavailable as error:
        return _replayed(f"its weights are not to be had here ({'; '.join(error.tried)})")
    return Source(
        says=f"Model: Qwen2.5-Coder-{size.upper()}-Instruct Q4_K_M, embedded, served on loopback",
        opened=_embedded(weights),
    )


def _replayed(why: str) -> Source:
    says = f"Replaying a recording of the embedded Qwen2.5-Coder-1.5B-Instruct: {why}"
    # The pages may have changed since: the answers are the recorded ones, the tools work on today's pages.
    return Source(says=says, opened=_open(ReplayModel(RECORDING, strict=False, pace=0.1)))


def _weights(size: Size, out: Console) -> Path:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=out, transient=True) as bar:
        task = bar.add_task(f"fetching {MODEL_FILES[size].name}, once", total=None, visible=False)

        def show(done_bytes: int, total_bytes: int) -> None:
            bar.update(task, completed=done_bytes, total=total_bytes, visible=True)

        return ensure_weights(size, progress=show)


@asynccontextmanager
async def _embedded(weights: Path) -> AsyncGenerator[Model]:
    async with embedded_server(weights) as server:
        served = OpenAIModel(
            server.model_name, base_url=server.base_url, temperature=0, extra_body={"max_tokens": ANSWER_TOKENS}
        )
        async with served:
            yield SchemaTools(served)


@asynccontextmanager
async def _open(model: Model) -> AsyncGenerator[Model]:
    if isinstance(model, OpenAIModel):
        async with model:
            yield model
    else:
        yield model


def _pages() -> Path:
    """The project's pages: packed into the wheel, or in the checkout."""
    packed = Path(__file__).with_name("docs")
    return packed if packed.is_dir() else Path(__file__).parents[3] / "docs"


def _title(out: Console, text: str) -> None:
    out.print(f"\n{text}\n", style="bold cyan", markup=False)
