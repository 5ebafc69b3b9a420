"""The tests' own ground: the network is off, and async tests run on the event loops they say."""

from __future__ import annotations

import asyncio
import socket
import threading

import anyio.lowlevel
import pytest
from hypothesis import given
from hypothesis import strategies as st

OTHER_MACHINE = "192.0.2.1"  # reserved for documentation: no host has it


def test_a_connection_to_another_machine_is_refused_with_the_remedy() -> None:
    """A test that would leave the machine fails, and its error says what to use instead."""
    with socket.socket() as client, pytest.raises(RuntimeError, match=r"stay on this machine.*shipped fake"):
        client.connect((OTHER_MACHINE, 80))


def test_a_datagram_to_another_machine_is_refused() -> None:
    """Sending without connecting is no way out."""
    with socket.socket(type=socket.SOCK_DGRAM) as client, pytest.raises(RuntimeError, match="stay on this machine"):
        client.sendto(b"x", (OTHER_MACHINE, 9))


def test_a_name_of_another_machine_is_not_looked_up() -> None:
    """A look-up asks another machine too."""
    with pytest.raises(RuntimeError, match=r"example\.com"):
        socket.getaddrinfo("example.com", 80)


def test_a_refusal_is_no_connection_failure() -> None:
    """Code that handles lost connections must not swallow it."""
    with socket.socket() as client, pytest.raises(RuntimeError) as refused:
        client.connect((OTHER_MACHINE, 80))
    assert not isinstance(refused.value, OSError)


async def test_an_event_loop_is_refused_too() -> None:
    """asyncio connects by another call than plain sockets do."""
    with pytest.raises(RuntimeError, match="stay on this machine"):
        await asyncio.open_connection(OTHER_MACHINE, 80)


def test_loopback_is_open() -> None:
    """Servers of the tests' own are reached, from other threads too."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = ("localhost", server.getsockname()[1])
        thread = threading.Thread(target=lambda: socket.create_connection(address).close())
        thread.start()
        server.accept()[0].close()
        thread.join()


@pytest.mark.network
def test_a_test_marked_network_may_leave() -> None:
    """The guard is open for it; a closed port of this very machine shows it without leaving."""
    with socket.socket(type=socket.SOCK_DGRAM) as client:
        client.connect((OTHER_MACHINE, 9))  # a datagram socket only notes the address


async def test_an_async_test_runs_on_asyncio(anyio_backend_name: str) -> None:
    """Without a mark of its own."""
    assert anyio_backend_name == "asyncio"


SEEN: set[str] = set()


@pytest.mark.both_backends
async def test_an_async_test_marked_so_runs_on_both_loops(anyio_backend_name: str) -> None:
    """Each loop's name comes once."""
    assert anyio_backend_name not in SEEN
    SEEN.add(anyio_backend_name)


@given(st.integers())
async def test_an_async_property_is_awaited(value: int) -> None:
    """Hypothesis hides the coroutine function; it is run all the same."""
    await anyio.lowlevel.checkpoint()
    assert value == value + 0
