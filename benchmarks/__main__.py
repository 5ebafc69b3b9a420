"""Measures endstop beside its peers and prints what it found as tables: `python -m benchmarks --help`.

A goal that is missed is said, and fails nothing: machines differ. Only a benchmark that does not work fails.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
import re
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks import audits, bounds, concurrency, cutover, deltas, http, imports, rounds
from benchmarks.measure import Effort, Table

PAGE = Path(__file__).resolve().parent.parent / "docs" / "benchmarks.md"
PACKAGES = (
    "endstop",
    "langchain",
    "langgraph",
    "langchain-openai",
    "pydantic-ai-slim",
    "openai-agents",
    "openai",
    "httpx",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Benchmark:
    """One table, and how many passes over all contenders it takes."""

    title: str
    run: Callable[[Effort], Table]
    passes: int
    quick_passes: int


BENCHMARKS = {
    "rounds": Benchmark(title="CPU a round, in memory", run=rounds.run, passes=15, quick_passes=5),
    "concurrency": Benchmark(title="Many runs at once", run=concurrency.run, passes=5, quick_passes=3),
    "deltas": Benchmark(title="CPU a piece of text, in memory", run=deltas.run, passes=9, quick_passes=3),
    "http-rounds": Benchmark(title="CPU a round, over HTTP", run=http.run_rounds, passes=5, quick_passes=3),
    "http-deltas": Benchmark(title="CPU a piece of text, over HTTP", run=http.run_pieces, passes=5, quick_passes=3),
    "audit": Benchmark(title="Audit", run=audits.run, passes=9, quick_passes=3),
    "cutover": Benchmark(
        title="CPU of a turn on the kernel, beside the same turn on LangGraph",
        run=cutover.run,
        passes=15,
        quick_passes=5,
    ),
    "bound": Benchmark(title="CPU of limits around an agent of LangChain", run=bounds.run, passes=15, quick_passes=5),
    "imports": Benchmark(title="Import", run=imports.run, passes=7, quick_passes=3),
}


def main() -> None:
    """Run the benchmarks that are asked for."""
    arguments = _parser().parse_args()
    # Nothing is to be reported anywhere while it is measured.
    os.environ.update(LANGSMITH_TRACING="false", LANGCHAIN_TRACING_V2="false", OPENAI_AGENTS_DISABLE_TRACING="1")
    warnings.simplefilter("ignore")
    machine = _machine()
    print(machine, end="\n\n", flush=True)
    for name in arguments.only or BENCHMARKS:
        benchmark = BENCHMARKS[name]
        started = time.perf_counter()
        passes = benchmark.quick_passes if arguments.quick else benchmark.passes
        table = benchmark.run(Effort(passes=passes, quick=arguments.quick))
        print(f"## {benchmark.title} (`--only {name}`)\n\n{table}\n", flush=True)
        print(f"{name}: {time.perf_counter() - started:.0f} s", file=sys.stderr, flush=True)
        if arguments.write:
            _write(name, str(table))
            _write("machine", machine)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "--only", action="append", choices=list(BENCHMARKS), help="this benchmark alone; may be repeated"
    )
    parser.add_argument("--quick", action="store_true", help="fewer passes, and without the costliest cases")
    parser.add_argument("--write", action="store_true", help="put the tables into docs/benchmarks.md as well")
    return parser


def _machine() -> str:
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in PACKAGES)
    python = f"{platform.python_implementation()} {platform.python_version()}"
    # What else the machine has to do is in the figures too.
    load = f", load {os.getloadavg()[0]:.1f} before" if hasattr(os, "getloadavg") else ""
    return f"{python} on {platform.system()} {platform.machine()}, {os.cpu_count()} cores{load}. {versions}."


def _write(place: str, text: str) -> None:
    """Put the text between the marks of this place in the page."""
    begin, end = f"<!-- {place}: written by the command -->", f"<!-- /{place} -->"
    pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
    page, count = pattern.subn(lambda _: f"{begin}\n\n{text}\n\n{end}", PAGE.read_text("utf-8"))
    if count != 1:
        raise RuntimeError(f"{PAGE.name} has {count} places for {place}, it should have one")
    PAGE.write_text(page, "utf-8")


if __name__ == "__main__":
    main()
