"""The httpx clients of `OpenAIModel`, made when they are needed and closed when their event loop ends."""

from __future__ import annotations

import functools
import weakref
from typing import TYPE_CHECKING, Any
from urllib.request import getproxies, proxy_bypass

import httpx
from anyio.lowlevel import RunVar

from endstop.models._openai_http import DirectTransport

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncGenerator

_LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})


class LoopClients:
    """One client for each event loop: connections belong to the loop that opened them."""

    def __init__(self, url: httpx.URL) -> None:
        self._url = url
        self._open: dict[object, tuple[httpx.AsyncClient, AsyncGenerator[None]]] = {}
        # The keepers of a model that is dropped must outlive it: as garbage beside it they could close nothing.
        weakref.finalize(self, self._open.clear).atexit = False

    async def get(self) -> httpx.AsyncClient:
        """The client of the running loop."""
        loop = _loop_key()
        entry = self._open.get(loop)
        if entry is not None:
            return entry[0]
        client = _new_client(self._url)
        keeper = _keep(client, loop, self._open)
        self._open[loop] = client, keeper
        await anext(keeper)
        return client

    async def aclose(self) -> None:
        """Close the client of the running loop, if there is one."""
        entry = self._open.get(_loop_key())
        if entry is not None:
            await entry[1].aclose()


async def _keep(client: httpx.AsyncClient, loop: object, clients: dict[object, Any]) -> AsyncGenerator[None]:
    """Closes the client at the end of its loop, or when nobody holds this generator any more.

    Nobody tells a model that its loop ends. But every loop closes the async generators that it has started
    before it does, which is the one moment when connections can be closed in it.
    """
    try:
        yield
    finally:
        clients.pop(loop, None)
        await client.aclose()


_LOOP: RunVar[object] = RunVar("endstop_openai_loop")


def _loop_key() -> object:
    """An object that stands for the running event loop, and never for another one."""
    key = _LOOP.get(None)
    if key is None:
        key = object()
        _LOOP.set(key)
    return key


def _new_client(url: httpx.URL) -> httpx.AsyncClient:
    """A client without a bound on its connections: how many requests are in flight is for the caller to say."""
    if _is_proxied(url):
        return httpx.AsyncClient(
            verify=_tls(), limits=httpx.Limits(max_connections=None, max_keepalive_connections=100)
        )
    return httpx.AsyncClient(transport=DirectTransport(_tls), trust_env=False)


def _is_proxied(url: httpx.URL) -> bool:
    """Whether the environment names a proxy for this address; none is for this machine."""
    proxies = getproxies()
    named = proxies.get(url.scheme) or proxies.get("all")
    return bool(named) and url.host not in _LOOPBACK and not proxy_bypass(url.host)


@functools.cache
def _tls() -> ssl.SSLContext:
    """The certificates, read once in the process: it takes as long as dozens of requests."""
    return httpx.create_ssl_context()
