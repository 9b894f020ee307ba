"""What becomes of blocks, told to whoever wants to know: docs/events.md is the contract.

Takes a manager's facts, in order. Gives numbered batches on ZeroMQ or NATS, and to a reader an index that is what the
pools hold. Never: blocks an engine for a broker or a reader; makes an object for each block on the way.
"""

from tenuto.events.batch import Batch, Event, Group, Kind, Message, Part, Source, decode, encode
from tenuto.events.grouping import BlockShape
from tenuto.events.index import Index, Place
from tenuto.events.publisher import Publisher, PublisherSettings
from tenuto.events.subscriber import Subscription, subscribe
from tenuto.events.ways import make_sender, parse_address

__all__ = [
    "Batch", "BlockShape", "Event", "Group", "Index", "Kind", "Message", "Part", "Place", "Publisher",
    "PublisherSettings", "Source", "Subscription", "decode", "encode", "make_sender", "parse_address", "subscribe",
]  # fmt: skip
