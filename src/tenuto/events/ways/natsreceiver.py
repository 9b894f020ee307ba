"""A reader's side of NATS: what the broker passes on, or what a JetStream stream has kept."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tenuto.events.ways.address import Address
from tenuto.events.ways.natsclient import HELLO, NatsClient

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.msg import Msg
    from nats.js.client import JetStreamContext

_MOST_QUEUED = 10_000
_FETCH = 256
_FLUSH_S = 2


class NatsReceiver:
    """Follows all publishers of a subject. The connection is driven while a method waits."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._nats = NatsClient(address, self._connected)
        self._arrived: deque[bytes] = deque()
        self._pull: JetStreamContext.PullSubscription | None = None
        self._sequence = 0  # of the last message that was taken from the JetStream stream

    def receive(self, timeout_s: float) -> bytes | None:
        """See `Receiver`."""
        if not self._arrived:
            self._nats.run(self._receive(timeout_s))
        return self._arrived.popleft() if self._arrived else None

    def ask(self, stream: bytes | None, first: int, timeout_s: float) -> Iterator[bytes]:
        """See `Receiver`. Nobody in particular is asked for a heartbeat alone, which all who are there send."""
        if stream is None:
            self._nats.run(self._nats.ensure())  # says hello
            if self._nats.client is None:
                raise TimeoutError("no broker")
            return
        client = self._nats.client
        if client is None:
            raise TimeoutError("no broker")
        inbox = client.new_inbox()
        try:
            asked = self._nats.run(self._ask(client, inbox, stream, first))
            try:
                while True:
                    message = self._nats.run(asked.next_msg(timeout_s))
                    if message.headers and message.headers.get("Status"):
                        raise TimeoutError("nobody has this stream any more")
                    if not message.data:
                        return
                    yield message.data
            finally:
                if client.is_connected:
                    self._nats.run(asked.unsubscribe())
        except self._nats.errors as error:
            raise TimeoutError(f"no answer: {error}") from None

    def close(self) -> None:
        """See `Receiver`."""
        self._nats.close()

    async def _connected(self, client: Client) -> None:
        if self._address.jetstream:
            self._pull = None
        else:
            await client.subscribe(f"{self._address.subject}.batch.*", cb=self._take)
        await client.publish(f"{self._address.subject}.{HELLO}", b"")
        await client.flush(_FLUSH_S)

    async def _receive(self, timeout_s: float) -> None:
        await self._nats.ensure()
        client = self._nats.client
        if client is None or not self._address.jetstream:
            await self._nats.sleep(timeout_s)
            return
        until = time.monotonic() + timeout_s
        try:
            await self._fetch(client, timeout_s)
        except self._nats.errors:
            self._pull = None
            if not client.is_connected:
                await self._nats.drop()
            await self._nats.sleep(min(0.1, max(0.0, until - time.monotonic())))

    async def _fetch(self, client: Client, timeout_s: float) -> None:
        """What the stream has from where we are on."""
        from nats.errors import TimeoutError as NothingThere

        if self._pull is None:
            self._pull = await self._open_pull(client)
        try:
            messages = await self._pull.fetch(_FETCH, timeout=max(0.01, min(timeout_s, 1.0)))
        except NothingThere:
            await self._pull.consumer_info()  # raises when the broker has forgotten us
            return
        for message in messages:
            self._sequence = message.metadata.sequence.stream
            self._arrived.append(message.data)

    async def _open_pull(self, client: Client) -> JetStreamContext.PullSubscription:
        from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

        jetstream = client.jetstream(timeout=_FLUSH_S)
        state = (await jetstream.stream_info(self._address.jetstream)).state
        if state.last_seq < self._sequence:
            self._sequence = 0  # another stream of that name
        return await jetstream.pull_subscribe(
            f"{self._address.subject}.batch.>",
            stream=self._address.jetstream,
            config=ConsumerConfig(
                deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
                opt_start_seq=self._sequence + 1,
                ack_policy=AckPolicy.NONE,
                inactive_threshold=60.0,
            ),
        )

    async def _ask(self, client: Client, inbox: str, stream: bytes, first: int):  # noqa: ANN202
        asked = await client.subscribe(inbox)
        await client.publish(f"{self._address.subject}.replay.{stream.hex()}", first.to_bytes(8, "big"), reply=inbox)
        return asked

    async def _take(self, message: Msg) -> None:
        if len(self._arrived) < _MOST_QUEUED:  # else it is asked for again
            self._arrived.append(message.data)
        self._nats.woken()
