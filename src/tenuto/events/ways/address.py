"""Addresses of event streams: `zmq://host:port` and `nats://host:port/subject`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import parse_qsl, urlsplit

from tenuto.errors import ConfigError

_FORMS = "zmq://HOST:PORT or nats://HOST:PORT/SUBJECT"
_SUBJECT = re.compile(r"[A-Za-z0-9_\-]+(\.[A-Za-z0-9_\-]+)*")
_NAME = re.compile(r"[A-Za-z0-9_\-]+")
_KNOWN = {"zmq": {"replay"}, "nats": {"jetstream"}}


@dataclass(frozen=True, slots=True)
class Address:
    """`scheme` is "zmq" or "nats". `login`: user:password, or nothing."""

    scheme: str
    host: str
    port: int
    replay_port: int = 0
    subject: str = ""
    jetstream: str = ""
    login: str = ""

    def of_rank(self, rank: int) -> Address:
        """That of a data-parallel rank: each has ports of its own, while NATS takes all of them at one."""
        if self.scheme != "zmq" or not rank:
            return self
        step = 2 * rank if self.replay_port == self.port + 1 else rank
        moved = Address(self.scheme, self.host, self.port + step, self.replay_port + step)
        if max(moved.port, moved.replay_port) > 65535:
            raise ConfigError(f"events.url: no port is left for rank {rank} behind {self.port}; give a lower one")
        return moved


def parse_address(url: str, setting: str = "events.url") -> Address:
    """The parts of a URL. Raises `ConfigError`, one line that names `setting`."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ConfigError(f"{setting}: {_shown(url)} is no address ({error}); give {_FORMS}") from None
    if parts.scheme not in _KNOWN:
        raise ConfigError(f"{setting}: {_shown(url)} is no way that is known; give {_FORMS}")
    if not parts.hostname or port is None or not 1 <= port <= 65534:
        raise ConfigError(f"{setting}: {_shown(url)} has no host and port; give {_FORMS}")
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    unknown = sorted(set(options) - _KNOWN[parts.scheme])
    if unknown or parts.fragment:
        known = ", ".join(sorted(_KNOWN[parts.scheme]))
        raise ConfigError(f"{setting}: {_shown(url)}: unknown option {', '.join(unknown) or '#'}; there is {known}")
    login = parts.netloc.rpartition("@")[0]
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    if parts.scheme == "zmq":
        if parts.path.strip("/") or login:
            raise ConfigError(f"{setting}: {_shown(url)} has more than a host and a port; give {_FORMS}")
        return Address("zmq", host, port, _port(options.get("replay", str(port + 1)), setting))
    subject = parts.path.strip("/")
    if not _SUBJECT.fullmatch(subject):
        raise ConfigError(f"{setting}: {_shown(url)} has no subject of words with dots between them; give {_FORMS}")
    jetstream = options.get("jetstream", "")
    if "jetstream" in options and not _NAME.fullmatch(jetstream):
        raise ConfigError(f"{setting}: {jetstream!r} is no name of a JetStream stream; give letters, digits, - and _")
    return Address("nats", host, port, subject=subject, jetstream=jetstream, login=login)


def _port(text: str, setting: str) -> int:
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= 65535):
        raise ConfigError(f"{setting}: replay={text!r} is no port; give 1 to 65535")
    return int(text)


def _shown(url: str) -> str:
    """Without a password."""
    return repr(re.sub(r"//[^/@]*@", "//...@", url))
