"""The way that an address names. The libraries are imported when one is made."""

from __future__ import annotations

from tenuto.events.ways.address import Address
from tenuto.events.ways.way import Receiver, Sender


def make_sender(address: Address) -> Sender:
    """A publisher's side. Raises `ConfigError` when its library is missing."""
    if address.scheme == "nats":
        from tenuto.events.ways.natssender import NatsSender

        return NatsSender(address)
    from tenuto.events.ways.zeromq import ZmqSender

    return ZmqSender(address)


def make_receiver(address: Address) -> Receiver:
    """A reader's side. Raises `ConfigError` when its library is missing."""
    if address.scheme == "nats":
        from tenuto.events.ways.natsreceiver import NatsReceiver

        return NatsReceiver(address)
    from tenuto.events.ways.zeromq import ZmqReceiver

    return ZmqReceiver(address)
