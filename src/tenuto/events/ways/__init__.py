"""Ways from a publisher to its readers: ZeroMQ straight, or NATS through a broker, chosen by URL.

Takes encoded batches and gives them to whoever listens; carries questions back, and answers.
Never: looks into a batch; blocks a publisher for a broker or a reader that is away.
"""

from tenuto.events.ways.address import Address, parse_address
from tenuto.events.ways.opening import make_receiver, make_sender
from tenuto.events.ways.way import Delivery, Question, Receiver, Sender

__all__ = ["Address", "Delivery", "Question", "Receiver", "Sender", "make_receiver", "make_sender", "parse_address"]
