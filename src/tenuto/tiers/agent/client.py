"""An agent of another process, by its socket."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import TypeVar

import msgspec

from tenuto.errors import Cause, ConfigError, StoreError
from tenuto.tiers.agent.address import CONTROL, short_address
from tenuto.tiers.agent.messages import (
    AgentInfo,
    Answer,
    Compact,
    Compacted,
    Describe,
    Drop,
    Get,
    Move,
    Moved,
    Put,
    Refused,
    Register,
    Request,
    Unregister,
)
from tenuto.tiers.disk.instance import instances, namespaces

_MOST_BYTES = 1 << 30
_T = TypeVar("_T")

_encoder = msgspec.msgpack.Encoder()
_answers = msgspec.msgpack.Decoder(Answer | Refused)


def find_agents(root: Path) -> list[Path]:
    """The sockets of all agents under a disk root; one whose process was killed is there until it is started again."""
    folders = [rank for home in namespaces(root) for instance in instances(home) for rank in instance.glob("rank-*")]
    return sorted(path for folder in folders if (path := folder / CONTROL).is_socket())


class AgentClient:
    """One order at a time; orders of several clients take turns.

    Raises `StoreError` (MISSING) when nobody answers, at the beginning or later, (TIMEOUT) when that takes more than
    `timeout_s` (None: however long); make another one then, orders that are under way go on. What the agent
    refuses is raised here: `ConfigError` for what can never be, `StoreError` for what may pass.
    """

    def __init__(self, path: Path, timeout_s: float | None = None) -> None:
        self._timeout_s = timeout_s
        self.path = path
        """The socket, as `find_agents` gives it."""
        client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with short_address(path) as address:
                client.connect(address)
        except OSError as error:
            client.close()
            raise StoreError(Cause.MISSING, f"no agent answers at {path} ({error.strerror or error})") from None
        self._connection = Connection(client.detach())

    def describe(self) -> AgentInfo:
        """What there is now: whose agent it is, and its volumes."""
        return self._ask(Describe(), AgentInfo)

    def register_volume(self, name: str, url: str, capacity_bytes: int) -> None:
        """Use a folder or an object store too, after a restart as well; the same again changes nothing."""
        self._ask(Register(name, url, capacity_bytes), type(None))

    def unregister_volume(self, name: str) -> Moved:
        """Move a volume's blocks to the others, home first, and close it; what there is no room for is lost."""
        return self._ask(Unregister(name), Moved)

    def move(self, hashes: Sequence[bytes], volume: str) -> Moved:
        """Have these blocks lie in `volume` ("": home), verified on the way."""
        return self._ask(Move(tuple(hashes), volume), Moved)

    def drop(self, hashes: Sequence[bytes]) -> int:
        """Have the engine forget these blocks; how many there were."""
        return self._ask(Drop(tuple(hashes)), int)

    def compact(self, volume: str) -> Compacted:
        """Move a volume's blocks together, and give its disk what is free behind them."""
        return self._ask(Compact(volume), Compacted)

    def get(self, block: bytes) -> bytes:
        """The verified extent of a block. `StoreError` (MISSING) where there is none."""
        return self._ask(Get(block), bytes)

    def put(self, extent: bytes) -> None:
        """Write a block that is there once more, from its whole extent: to mend a damaged copy."""
        self._ask(Put(extent), type(None))

    def close(self) -> None:
        """Hang up."""
        self._connection.close()

    def _ask(self, request: Request, kind: type[_T]) -> _T:
        try:
            self._connection.send_bytes(_encoder.encode(request))
            if not self._connection.poll(self._timeout_s):
                self._connection.close()  # what comes late is no answer to what is asked next
                raise StoreError(Cause.TIMEOUT, f"the agent at {self.path} did not answer in {self._timeout_s:g} s")
            answer = _answers.decode(self._connection.recv_bytes(_MOST_BYTES))
        except (EOFError, OSError) as error:
            raise StoreError(Cause.MISSING, f"the agent at {self.path} is gone ({error or 'it hung up'})") from None
        except msgspec.DecodeError as error:
            raise StoreError(Cause.CORRUPT, f"the agent at {self.path} is of another version: {error}") from None
        if isinstance(answer, Refused):
            raise error_of(answer)
        if not isinstance(answer.value, kind):
            raise StoreError(Cause.CORRUPT, f"the agent at {self.path} answers something else than it was asked")
        return answer.value

    def __enter__(self) -> AgentClient:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def error_of(refused: Refused) -> StoreError | ConfigError:
    """What an agent's refusal is raised as."""
    if not refused.cause:
        return ConfigError(refused.message)
    known = {cause.value: cause for cause in Cause}
    return StoreError(known.get(refused.cause, Cause.IO_ERROR), refused.message)  # a later version has more of them
