"""Tries the built wheel as a user without extras has it: run by that user's Python with -I, away from the sources."""

import importlib.metadata
import subprocess
import sys
from pathlib import Path

import endstop


def import_error(name: str) -> str | None:
    """What a public name says where it cannot be had, or None where it is there."""
    try:
        getattr(endstop, name)
    except ImportError as error:
        return str(error)
    return None


def main() -> None:
    root = Path(endstop.__file__).parent
    assert "site-packages" in root.parts, f"endstop was imported from {root}, not from the installed wheel"
    assert (root / "py.typed").is_file(), "the wheel carries no py.typed, so its types are invisible"

    needing_an_extra = {name: error for name in endstop.__all__ if (error := import_error(name))}
    for name, error in needing_an_extra.items():
        assert "endstop[" in error, f"{name} needs an extra, but its error does not name it: {error}"

    version = importlib.metadata.version("endstop")
    command = Path(sys.executable).with_name("endstop")
    printed = subprocess.run([command, "--version"], capture_output=True, text=True, check=True).stdout
    assert version in printed, f"endstop --version printed {printed!r}, the wheel is {version}"

    extras = f"; need an extra and say so: {', '.join(needing_an_extra)}" if needing_an_extra else ""
    print(f"endstop {version} works from its wheel: {len(endstop.__all__)} public names{extras}")


if __name__ == "__main__":
    main()
