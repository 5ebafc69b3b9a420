"""Modules that a test loads from a folder of its own, and that no later test may find."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextmanager
def modules_forgotten(folder: Path) -> Iterator[None]:
    """Forget, at the end, the modules that were loaded from the folder.

    Only those: a library that is loaded a second time is not the same library, and some of them break.
    """
    before = dict(sys.modules)
    try:
        yield
    finally:
        for name, module in list(sys.modules.items()):
            places = [getattr(module, "__file__", None), *getattr(module, "__path__", ())]
            if name not in before and any(place and str(place).startswith(str(folder)) for place in places):
                del sys.modules[name]
