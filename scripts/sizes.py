"""Prints how long the heart, the files and the functions of the package are."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import median, quantiles

PACKAGE = Path(__file__).resolve().parent.parent / "src" / "endstop"
HEART = ("_drive.py", "_steps.py", "_agent.py")


def functions(path: Path) -> Iterator[tuple[int, str]]:
    """The length in lines and the place of each function of a file, decorators not counted."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield (
                (node.end_lineno or node.lineno) - node.lineno + 1,
                f"{path.relative_to(PACKAGE)}:{node.lineno} {node.name}",
            )


def main() -> None:
    files = sorted(PACKAGE.rglob("*.py"))
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in files}
    found = sorted((entry for path in files for entry in functions(path)), reverse=True)
    if len(found) < 2:
        sys.exit(f"no functions found in {PACKAGE}")

    loop = next(length for length, place in found if place.startswith(HEART[0]) and place.endswith(" _work"))
    print(f"the loop: {loop} lines")
    print("the heart, the loop and what decides its steps:", ", ".join(f"{h} {lengths[PACKAGE / h]}" for h in HEART))
    print(f"files: {len(files)}, {sum(lengths.values())} lines")
    for path, length in sorted(lengths.items(), key=lambda entry: -entry[1]):
        print(f"  {length:4} {path.relative_to(PACKAGE)}")
    sizes = [length for length, _ in found]
    longest_but_a_tenth = quantiles(sizes, n=10, method="inclusive")[-1]
    print(f"functions: {len(found)}, median {median(sizes):g} lines, 90th percentile {longest_but_a_tenth:g}")
    for length, place in found[:10]:
        print(f"  {length:4} {place}")


if __name__ == "__main__":
    main()
