"""A connection to a NATS broker for one thread: made again whenever it is lost, and driven only while it is used."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from tenuto.errors import ConfigError
from tenuto.events.ways.address import Address

if TYPE_CHECKING:
    from nats.aio.client import Client

logger = logging.getLogger(__name__)

HELLO = "hello"
_CONNECT_S = 1.0
_LEAST_RETRY_S = 0.05
_MOST_RETRY_S = 2.0

T = TypeVar("T")


def import_nats() -> Any:
    """The library. Raises `ConfigError` when it is missing."""
    try:
        import nats
    except ImportError:
        raise ConfigError(
            "events.url: nats:// needs nats-py, which is not installed; install tenuto[events], or give another way"
        ) from None
    return nats


class NatsClient:
    """`client` is None while there is no broker. `on_connect` is called with each new one."""

    def __init__(self, address: Address, on_connect: Callable[[Client], Awaitable[None]]) -> None:
        self._nats = import_nats()
        self._address = address
        self._on_connect = on_connect
        self._loop = asyncio.new_event_loop()
        self._woken = asyncio.Event()
        self._client: Client | None = None
        self._retry_at = 0.0
        self._pause_s = _LEAST_RETRY_S
        self._has_complained = False
        from nats.errors import Error

        self.errors: tuple[type[BaseException], ...] = (Error, OSError, asyncio.TimeoutError, asyncio.CancelledError)
        """What a broker that goes away, or refuses something, is told by."""

    @property
    def client(self) -> Client | None:
        """The connection, while it is one."""
        client = self._client
        return client if client is not None and client.is_connected else None

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Do something with it, on the thread that owns it."""
        return self._loop.run_until_complete(work)

    async def ensure(self) -> bool:
        """Connect, when there is no connection and it is time to; whether there is a new one."""
        if self.client is not None or time.monotonic() < self._retry_at:
            return False
        await self.drop()
        client = self._nats.aio.client.Client()
        login = f"{self._address.login}@" if self._address.login else ""
        try:
            async with asyncio.timeout(2 * _CONNECT_S):
                await client.connect(
                    servers=[f"nats://{login}{self._address.host}:{self._address.port}"],
                    allow_reconnect=False, max_reconnect_attempts=1, reconnect_time_wait=0, connect_timeout=_CONNECT_S,
                    error_cb=self._error, name="tenuto",
                )  # fmt: skip
                self._client = client
                await self._on_connect(client)
        except self.errors as error:
            await self.drop(error)
            return False
        self._pause_s = _LEAST_RETRY_S
        if self._has_complained:
            logger.info("tenuto: events: the broker at %s:%d is there", self._address.host, self._address.port)
            self._has_complained = False
        return True

    async def sleep(self, timeout_s: float) -> None:
        """Let the connection work for so long, until `wake` or the time of the next attempt."""
        if self.client is None:
            timeout_s = min(timeout_s, max(0.0, self._retry_at - time.monotonic()))
        if timeout_s <= 0:
            for _ in range(3):  # what has arrived is read, and handed on
                await asyncio.sleep(0)
        else:
            with suppress(asyncio.TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._woken.wait()
        self._woken.clear()

    def woken(self) -> None:
        """End `sleep`, from this thread."""
        self._woken.set()

    def wake(self) -> None:
        """End `sleep`, from any thread."""
        with suppress(RuntimeError):  # it is closed
            self._loop.call_soon_threadsafe(self._woken.set)

    async def drop(self, error: BaseException | None = None) -> None:
        """Give the connection up, because of `error`; it is tried again later."""
        if error is not None:
            self._complain(error)
        client, self._client = self._client, None
        self._retry_at = time.monotonic() + self._pause_s
        self._pause_s = min(_MOST_RETRY_S, 2 * self._pause_s)
        if client is not None:
            with suppress(*self.errors):
                async with asyncio.timeout(_CONNECT_S):
                    await client.close()

    def close(self) -> None:
        """End."""
        self.run(self.drop())
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self.run(asyncio.sleep(0))
        self._loop.close()

    def _complain(self, error: BaseException) -> None:
        if not self._has_complained:
            self._has_complained = True
            logger.warning(
                "tenuto: events: the broker at %s:%d is away or refuses them (%s); they wait",
                self._address.host, self._address.port, str(error) or type(error).__name__,
            )  # fmt: skip

    async def _error(self, error: Exception) -> None:
        logger.debug("tenuto: events: %r", error)
