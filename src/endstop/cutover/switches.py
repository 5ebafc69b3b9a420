"""Which body serves a turn: one switch for each surface, set in code, in the environment or in a file.

::

    switches = Switches({"invocation.stream": "off"}, file="cutover.json")
    switches.decide("invocation.run", thread_id="customer-7")     # "legacy", "shadow" or "kernel"

The file is read again when it changes, so that a switch can be thrown while turns are being served.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import random
import threading
import time
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias, assert_never, get_args

from endstop._errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from endstop._messages import JsonValue

Surface: TypeAlias = Literal["invocation.run", "invocation.stream"]
"""What a caller uses of an agent: a turn with one answer, or a turn in pieces."""

Mode: TypeAlias = Literal["off", "shadow", "canary", "on"]
"""`off`: the legacy body serves. `shadow`: it serves, and its turn is replayed on the kernel. `canary`: the kernel
serves a share of the threads. `on`: the kernel serves."""

Route: TypeAlias = Literal["legacy", "shadow", "kernel"]
"""What a switch asks for one turn; the kernel may still refuse it."""

Source: TypeAlias = Literal["code", "environment", "file", "default"]
"""Where a setting comes from, strongest first."""

SURFACES: tuple[Surface, ...] = get_args(Surface)
"""Every surface that has a switch."""

ENVIRONMENT_PREFIX = "ENDSTOP_CUTOVER_"
"""What the environment variable of a surface begins with: `ENDSTOP_CUTOVER_INVOCATION_RUN`."""

_REMEDY = "use 'off', 'shadow', 'on', or a share of the threads from 0 to 1 as in 'canary=0.05'"
_SALT = b"endstop.cutover.canary:"
# The coarsest clock of a file system in use: within it a second change of the same size may show no other time.
_CLOCK_NS = 2_000_000_000
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What one switch is set to. `share` is the share of the threads that the kernel is asked to serve, 0 to 1."""

    mode: Mode = "off"
    share: float = 0.0
    source: Source = "default"

    def route(self, thread_id: str | None, *, random: Callable[[], float] = random.random) -> Route:
        """The way of one turn.

        A canary takes a thread by the `position` of its id. A turn without a thread id is decided by a draw from
        `random`, a number from 0 up to but not 1: two such turns of one conversation may go different ways.
        """
        match self.mode:
            case "off":
                return "legacy"
            case "shadow":
                return "shadow"
            case "on":
                return "kernel"
            case "canary":
                return "kernel" if (random() if thread_id is None else position(thread_id)) < self.share else "legacy"
            case _:
                assert_never(self.mode)

    def __str__(self) -> str:
        """The setting as it is written: `canary=0.05`."""
        return f"canary={self.share!r}" if self.mode == "canary" else self.mode


def position(thread_id: str) -> float:
    """Where a thread stands among all threads, from 0 up to but not 1; a canary takes those below its share.

    It depends on the id alone, so a thread goes the same way on each surface, in each process and on each machine, and
    a share that grows only adds threads.
    """
    digest = hashlib.sha256(_SALT + thread_id.encode("utf-8", "surrogatepass")).digest()
    # The 53 bits that a float holds exactly: no position is rounded up to 1.
    return (int.from_bytes(digest[:8], "big") >> 11) / 2**53


class Switches:
    """The switches of all surfaces. Safe to use from several threads at once.

    For each surface the strongest source that names it decides: `values` given in code, the environment
    (`ENDSTOP_CUTOVER_INVOCATION_RUN=canary=0.05`, read once; an empty variable names nothing), the `file`. A surface
    that none of them names is `off`. A value is `off`, `shadow`, `canary=<share>`, `on`, or a share as a number; in a
    file, `"invocation.run"` is the key, of a JSON object (`.json`) or of TOML (`.toml`).

    The file is looked at for each decision and read again when it has changed; replace it in one step (write another
    beside it and rename that). One that can no longer be read or used changes nothing: the last good settings stay,
    `problem` says what is wrong, and a warning is logged once. `environ` stands in for the environment of the process,
    `random` for the draw that decides a canary's turns without thread.

    Raises:
        ConfigError: a surface has no switch, a value is none, or the file is not there or cannot be used.
    """

    def __init__(
        self,
        values: Mapping[str, str | float] | None = None,
        *,
        file: Path | str | None = None,
        environ: Mapping[str, str] | None = None,
        random: Callable[[], float] = random.random,
    ) -> None:
        self._random = random
        self._fixed = _from_environment(os.environ if environ is None else environ) | _settings(values or {}, "code")
        self._file = None if file is None else _SettingsFile(Path(file).absolute())

    @property
    def problem(self) -> str | None:
        """Why the file as it is now cannot be used, so that older settings hold; `None` where all is well."""
        return None if self._file is None else self._file.current().problem

    def setting(self, surface: Surface) -> Setting:
        """What the switch of a surface is set to now.

        Raises:
            ConfigError: the surface has no switch.
        """
        check_surface(surface)
        if surface in self._fixed or self._file is None:
            return self._fixed.get(surface, _OFF)
        return self._file.current().settings.get(surface, _OFF)

    def decide(self, surface: Surface, thread_id: str | None) -> Route:
        """The way of one turn, as the switch of its surface is set now.

        Raises:
            ConfigError: the surface has no switch.
        """
        return self.setting(surface).route(thread_id, random=self._random)


_OFF = Setting()


def check_surface(surface: object) -> None:
    """Check the name of a surface; callers are not all type-checked.

    Raises:
        ConfigError: it has no switch.
    """
    if surface not in SURFACES:
        raise ConfigError("surface", surface, f"use one of {', '.join(SURFACES)}")


def _setting(field: str, value: object, source: Source) -> Setting:
    """The setting that a value is."""
    match value:
        case "off":
            return Setting(mode="off", source=source)
        case "shadow":
            return Setting(mode="shadow", source=source)
        case "on":
            return Setting(mode="on", share=1.0, source=source)
        case str() if value.startswith("canary="):
            return Setting(mode="canary", share=_share(field, value, value.removeprefix("canary=")), source=source)
        case int() | float() if not isinstance(value, bool):
            return Setting(mode="canary", share=_share(field, value, value), source=source)
        case _:
            raise ConfigError(field, value, _REMEDY)


def _share(field: str, value: object, written: str | float) -> float:
    try:
        share = float(written)
    except (ValueError, OverflowError):
        raise ConfigError(field, value, _REMEDY) from None
    if not 0 <= share <= 1:
        raise ConfigError(field, value, _REMEDY)
    return share


def _settings(values: Mapping[str, object], source: Source, where: str = "values") -> dict[str, Setting]:
    """The settings by surface."""
    for surface in values:
        if surface not in SURFACES:
            raise ConfigError(where, surface, f"name a surface that has a switch: {', '.join(SURFACES)}")
    return {surface: _setting(f"{where}[{surface!r}]", value, source) for surface, value in values.items()}


def _from_environment(environ: Mapping[str, str]) -> dict[str, Setting]:
    names = {surface: ENVIRONMENT_PREFIX + surface.replace(".", "_").upper() for surface in SURFACES}
    return {
        surface: _setting(name, environ[name].strip(), "environment")
        for surface, name in names.items()
        if environ.get(name, "").strip()
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reading:
    """What a file said when it was last read. A `stamp` of `None` is none that a file can have."""

    settings: Mapping[str, Setting]
    stamp: tuple[int, int, int] | None
    problem: str | None = None


class _SettingsFile:
    """A file of settings, read again when its stamp changes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        try:
            self._reading = _Reading(stamp=self._stamp(), settings=self._read())
        except (OSError, ValueError, RecursionError) as error:
            raise ConfigError("file", str(path), f"use a .json or .toml file of switches ({error})") from error

    def current(self) -> _Reading:
        """The settings that hold now; older ones where the file can no longer be used."""
        with self._lock:
            if self._has_changed():
                self._read_again()
            return self._reading

    def _has_changed(self) -> bool:
        try:
            stamp = self._stamp()
        except OSError:
            stamp = None
        if stamp is None:
            return self._reading.stamp is not None
        return stamp != self._reading.stamp or abs(time.time_ns() - stamp[0]) < _CLOCK_NS

    def _read_again(self) -> None:
        before, stamp = self._reading, None
        try:
            # Looked at before it is read: what is written in between has another stamp, and is read next.
            stamp = self._stamp()
            self._reading = _Reading(stamp=stamp, settings=self._read())
        except (OSError, ValueError, RecursionError, ConfigError) as error:
            # What could not be read may be readable the next time, with the same stamp.
            stamp = None if isinstance(error, OSError) else stamp
            problem = f"{self._path} cannot be used, so its last good settings stay: {error}"
            self._reading = _Reading(stamp=stamp, settings=before.settings, problem=problem)
            if problem != before.problem:
                _log.warning("%s", problem)

    def _stamp(self) -> tuple[int, int, int]:
        found = self._path.stat()
        return found.st_mtime_ns, found.st_size, found.st_ino

    def _read(self) -> dict[str, Setting]:
        text = self._path.read_text(encoding="utf-8")
        match self._path.suffix:
            case ".json":
                values: JsonValue = json.loads(text)
            case ".toml":
                values = dict(_flat(tomllib.loads(text)))
            case suffix:
                raise ValueError(f"its name ends in {suffix!r}")
        if not isinstance(values, dict):
            raise ConfigError("file", str(self._path), 'write an object, as in {"invocation.run": "off"}')
        return _settings(values, "file", self._path.name)


def _flat(table: Mapping[str, JsonValue], above: str = "") -> Iterator[tuple[str, JsonValue]]:
    """The values of a table by their dotted keys: TOML takes a key without quotes, `invocation.run`, for two tables."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{above}{key}.")
        else:
            yield above + key, value


_default: Switches | None = None


def default_switches() -> Switches:
    """The switches of this process: those of its environment, until `use_switches` names others."""
    global _default
    if _default is None:
        _default = Switches()
    return _default


def use_switches(switches: Switches | None) -> Switches | None:
    """Make these the switches of the process, for all turns from now on (`None`: those of the environment).

    Returns those before, `None` where the environment's were not read yet.
    """
    global _default
    before, _default = _default, switches
    return before
