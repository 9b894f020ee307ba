"""A publisher's side of NATS, with or without JetStream."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tenuto.events.ways.address import Address
from tenuto.events.ways.natsclient import HELLO, NatsClient
from tenuto.events.ways.way import Delivery, Question

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.msg import Msg

_FLUSH_S = 2.0
_MOST_PENDING_BYTES = 1 << 20
_STREAM_BYTES = 1 << 30
"""What a JetStream stream keeps, when it is not there yet."""


class NatsSender:
    """What the broker has confirmed counts as sent; what it may have lost is sent again."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._nats = NatsClient(address, self._connected)
        self._questions: list[Question] = []

    def open(self, stream: bytes) -> None:
        """See `Sender`. The broker may come later."""
        self._stream = stream.hex()
        self._subject = f"{self._address.subject}.batch.{self._stream}"

    def wait(self, timeout_s: float) -> list[Question]:
        """See `Sender`."""
        self._nats.run(self._wait(timeout_s))
        questions, self._questions = self._questions, []
        return questions

    def wake(self) -> None:
        """See `Sender`."""
        self._nats.wake()

    def send(self, batches: Sequence[tuple[int, bytes]]) -> int:
        """See `Sender`."""
        return 0 if self._nats.client is None else self._nats.run(self._send(self._nats.client, batches))

    def answer(self, asker: object, first: int, payload: bytes | None) -> Delivery:  # noqa: ARG002
        """See `Sender`."""
        client = self._nats.client
        if client is None:
            return Delivery.GONE
        return self._nats.run(self._answer(client, str(asker), payload or b""))

    def close(self, timeout_s: float) -> None:  # noqa: ARG002
        """See `Sender`: what was sent is confirmed."""
        self._nats.close()

    async def _wait(self, timeout_s: float) -> None:
        if not await self._nats.ensure():
            await self._nats.sleep(0.0 if self._questions else timeout_s)

    async def _connected(self, client: Client) -> None:
        await client.subscribe(f"{self._address.subject}.replay.{self._stream}", cb=self._asked)
        await client.subscribe(f"{self._address.subject}.{HELLO}", cb=self._greeted)
        if self._address.jetstream:
            await self._make_stream(client)
        await client.flush(int(_FLUSH_S))

    async def _make_stream(self, client: Client) -> None:
        from nats.js.api import DiscardPolicy, StreamConfig
        from nats.js.errors import NotFoundError

        jetstream = client.jetstream(timeout=_FLUSH_S)
        try:
            await jetstream.stream_info(self._address.jetstream)
        except NotFoundError:
            kept = StreamConfig(self._address.jetstream, max_bytes=_STREAM_BYTES, discard=DiscardPolicy.OLD)
            await jetstream.add_stream(kept, subjects=[f"{self._address.subject}.batch.>"])

    async def _send(self, client: Client, batches: Sequence[tuple[int, bytes]]) -> int:
        """All or none: one answer of the broker stands for them, since it takes them in order."""
        try:
            last = len(batches) - 1
            for i, (_, payload) in enumerate(batches):
                if self._address.jetstream and i == last:
                    await client.jetstream(timeout=_FLUSH_S).publish(self._subject, payload)
                else:
                    await client.publish(self._subject, payload)
            if not self._address.jetstream:
                await client.flush(int(_FLUSH_S))
        except self._nats.errors:
            await self._nats.drop()
            return 0
        return len(batches)

    async def _answer(self, client: Client, inbox: str, payload: bytes) -> Delivery:
        try:
            await client.publish(inbox, payload)
            if not payload or client.pending_data_size > _MOST_PENDING_BYTES:
                await client.flush(int(_FLUSH_S))
            else:
                await asyncio.sleep(0)
        except self._nats.errors:
            await self._nats.drop()
            return Delivery.GONE
        return Delivery.DONE

    async def _asked(self, message: Msg) -> None:
        if message.reply and len(message.data) == 8:
            self._questions.append(Question(int.from_bytes(message.data, "big"), message.reply))
            self._nats.woken()

    async def _greeted(self, _: Msg) -> None:
        self._questions.append(Question(None))
        self._nats.woken()
