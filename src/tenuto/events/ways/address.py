"""Addresses of event streams: `zmq://host:port` and `nats://host:port/subject`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from urllib.parse import SplitResult, parse_qsl, urlsplit

from tenuto.errors import ConfigError

_FORMS = "zmq://HOST:PORT or nats://HOST:PORT/SUBJECT"
_ROUTER_FORM = "zmq://HOST:PORT"
_SUBJECT = re.compile(r"[A-Za-z0-9_\-]+(\.[A-Za-z0-9_\-]+)*")
_NAME = re.compile(r"[A-Za-z0-9_\-]+")
_KNOWN = {"zmq": {"replay"}, "nats": {"jetstream"}}
_ROUTER_KNOWN = {"zmq": {"replay", "topic"}}


@dataclass(frozen=True, slots=True)
class Address:
    """`scheme` is "zmq" or "nats". `login`: user:password, or nothing. `setting` gave it."""

    scheme: str
    host: str
    port: int
    replay_port: int = 0
    subject: str = ""
    jetstream: str = ""
    login: str = ""
    topic: str = "tenuto"
    setting: str = "events.url"

    def of_rank(self, rank: int) -> Address:
        """That of a data-parallel rank: each has ports of its own, while NATS takes all of them at one."""
        if self.scheme != "zmq" or not rank:
            return self
        step = 2 * rank if self.replay_port == self.port + 1 else rank
        moved = replace(self, port=self.port + step, replay_port=self.replay_port + step)
        if max(moved.port, moved.replay_port) > 65535:
            raise ConfigError(f"{self.setting}: no port is left for rank {rank} behind {self.port}; give a lower one")
        return moved


def parse_address(url: str, setting: str = "events.url") -> Address:
    """The parts of a URL. Raises `ConfigError`, one line that names `setting`."""
    parts, port, host = _split(url, setting, _KNOWN, _FORMS)
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    login = parts.netloc.rpartition("@")[0]
    if parts.scheme == "zmq":
        return _zmq(url, setting, _FORMS, Address("zmq", host, port, setting=setting))
    subject = parts.path.strip("/")
    if not _SUBJECT.fullmatch(subject):
        raise ConfigError(f"{setting}: {_shown(url)} has no subject of words with dots between them; give {_FORMS}")
    jetstream = options.get("jetstream", "")
    if "jetstream" in options and not _NAME.fullmatch(jetstream):
        raise ConfigError(f"{setting}: {jetstream!r} is no name of a JetStream stream; give letters, digits, - and _")
    return Address("nats", host, port, subject=subject, jetstream=jetstream, login=login, setting=setting)


def parse_router_address(url: str, setting: str) -> Address:
    """That of a stream as vLLM's publisher has it: only ZeroMQ, and with a topic, which is empty by default.

    Raises `ConfigError`, one line that names `setting`.
    """
    parts, port, host = _split(url, setting, _ROUTER_KNOWN, _ROUTER_FORM)
    topic = dict(parse_qsl(parts.query)).get("topic", "")
    return _zmq(url, setting, _ROUTER_FORM, Address("zmq", host, port, topic=topic, setting=setting))


def _split(url: str, setting: str, known: Mapping[str, set[str]], forms: str) -> tuple[SplitResult, int, str]:
    """The parts of a URL, its port and its host; `known`: schemes and their options."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ConfigError(f"{setting}: {_shown(url)} is no address ({error}); give {forms}") from None
    if parts.scheme not in known:
        raise ConfigError(f"{setting}: {_shown(url)} is no way that is known; give {forms}")
    if not parts.hostname or port is None or not 1 <= port <= 65534:
        raise ConfigError(f"{setting}: {_shown(url)} has no host and port; give {forms}")
    unknown = sorted(set(dict(parse_qsl(parts.query, keep_blank_values=True))) - known[parts.scheme])
    if unknown or parts.fragment:
        there_is = ", ".join(sorted(known[parts.scheme]))
        raise ConfigError(f"{setting}: {_shown(url)}: unknown option {', '.join(unknown) or '#'}; there is {there_is}")
    return parts, port, f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname


def _zmq(url: str, setting: str, forms: str, address: Address) -> Address:
    """`address` with the port of its replay."""
    parts = urlsplit(url)
    if parts.path.strip("/") or "@" in parts.netloc:
        raise ConfigError(f"{setting}: {_shown(url)} has more than a host and a port; give {forms}")
    given = dict(parse_qsl(parts.query, keep_blank_values=True)).get("replay", str(address.port + 1))
    return replace(address, replay_port=_port(given, setting))


def _port(text: str, setting: str) -> int:
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= 65535):
        raise ConfigError(f"{setting}: replay={text!r} is no port; give 1 to 65535")
    return int(text)


def _shown(url: str) -> str:
    """Without a password."""
    return repr(re.sub(r"//[^/@]*@", "//...@", url))
