"""The public API as a typed program uses it: read by mypy and pyright (`make check`), never run."""

import endstop

names: list[str] = list(endstop.__all__)
