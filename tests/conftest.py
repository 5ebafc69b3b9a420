"""What every test stands on: no network, and async tests on asyncio or on both event loops."""

from __future__ import annotations

import inspect
import ipaddress
import socket
import sys
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from collections.abc import Iterator

# A slow machine must not fail a property test, and a failure must be the same everywhere.
settings.register_profile("endstop", deadline=None, derandomize=True)
settings.load_profile("endstop")


class NetworkRefused(RuntimeError):
    """A test tried to reach another machine.

    No `OSError`: the code under test would take it for an ordinary connection failure and go on.
    """


class NetworkGuard:
    """Refuses to connect, send or look up names beyond this machine, for the whole process, unless `is_open`.

    It hears of every socket through the interpreter's audit events, so nothing is patched and no library escapes.
    """

    is_open = False

    def __call__(self, event: str, arguments: tuple[object, ...]) -> None:
        match event, arguments:
            case (("socket.connect" | "socket.sendto" | "socket.sendmsg"), (socket.socket(family=family), address, *_)):
                refused = family != socket.AF_UNIX and not is_loopback(address)
            case (("socket.getaddrinfo" | "socket.gethostbyname"), (address, *_)):
                refused = not is_loopback(address)
            case _:
                return
        if refused and not self.is_open:
            raise NetworkRefused(
                f"{event} to {address!r}: tests stay on this machine. Use a shipped fake or a server on 127.0.0.1, "
                "or mark the test `network`."
            )


def is_loopback(address: object) -> bool:
    """Whether a socket address, or a host name to look up, stays on this machine."""
    host = address[0] if isinstance(address, tuple) else address
    text = host.decode("ascii", "replace") if isinstance(host, bytes) else host
    if text in (None, "", "localhost"):
        return True
    try:
        return ipaddress.ip_address(str(text).partition("%")[0]).is_loopback
    except ValueError:
        return False


GUARD = NetworkGuard()
sys.addaudithook(GUARD)


@pytest.fixture(autouse=True)
def network_off(request: pytest.FixtureRequest) -> Iterator[None]:
    """Refuses connections to other machines unless the test is marked `network`."""
    GUARD.is_open = request.node.get_closest_marker("network") is not None
    yield
    GUARD.is_open = False


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(collector: pytest.Collector, name: str, obj: object) -> None:
    """Marks every async test for anyio, so that no test needs to say it."""
    function = obj.hypothesis.inner_test if hasattr(obj, "hypothesis") else obj
    if inspect.iscoroutinefunction(function) and name.startswith("test"):
        pytest.mark.anyio(obj)


@pytest.fixture(scope="module")
def anyio_backend(request: pytest.FixtureRequest) -> str:
    """The event loop of an async test: asyncio, and trio too where it is marked `both_backends`."""
    return getattr(request, "param", "asyncio")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Runs tests marked `both_backends` once on each event loop."""
    if "anyio_backend" in metafunc.fixturenames and metafunc.definition.get_closest_marker("both_backends"):
        metafunc.parametrize("anyio_backend", ["asyncio", "trio"], indirect=True)
