"""Objects in an object store, by `obstore`: within seconds, or not at all.

The login, the region and the endpoint are what obstore takes from the environment of the engine's process: for s3://
`AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, `AWS_REGION`, and `AWS_ENDPOINT_URL` for a server of one's own, which may
be plain http (`AWS_ENDPOINT_URL=http://10.0.0.5:9000`); for gs:// and az:// what their own tools take.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

from tenuto.errors import Cause, ConfigError, StoreError

if TYPE_CHECKING:
    from obstore.store import ObjectStore as RawStore

logger = logging.getLogger(__name__)

SCHEMES = ("s3", "gs", "az", "azure", "http", "https")
_CONNECT_S, _READ_S, _REQUEST_S = 2, 5, 10
_RETRIES, _RETRY_S = 2, 5
_AWAY_S = 10.0
"""How long a server that did not answer is not asked again."""
_MOST_DELETED = 500

_T = TypeVar("_T")


def open_raw(url: str) -> RawStore:
    """The object store at an URL; see this module for its login.

    Raises `ConfigError` for one that can't be: a wrong URL, or obstore is not installed.
    """
    try:
        from obstore.exceptions import BaseError
        from obstore.store import from_url
    except ImportError:
        raise ConfigError(f"volume {url} needs obstore, which is not installed; pip install obstore") from None
    seconds = timedelta(seconds=1)
    try:
        return from_url(
            url,
            client_options={
                "allow_http": True,  # for who gives a plain endpoint; others are asked by https all the same
                "connect_timeout": _CONNECT_S * seconds,
                "read_timeout": _READ_S * seconds,
                "timeout": _REQUEST_S * seconds,
            },
            retry_config={"max_retries": _RETRIES, "retry_timeout": _RETRY_S * seconds},
        )
    except (BaseError, ValueError) as error:
        raise ConfigError(f"volume {url}: {one_line(error)}; write it as s3://BUCKET/PREFIX") from None


class Bucket:
    """Objects by number, named `prefix`/<number, 8 hex digits>. Thread-safe; errors are `StoreError`.

    A server that does not answer, or refuses, is told about in one line and not asked again for a while: all fails at
    once meanwhile.
    """

    def __init__(self, raw: RawStore, prefix: str) -> None:
        self._raw = raw
        self.prefix = prefix
        self._away_until = 0.0
        self._is_away = False

    def put(self, number: int, data: bytes) -> None:
        """Write an object."""
        self._ask("write", lambda: self._raw.put(self._name(number), data))

    def get(self, number: int, start: int, stop: int) -> memoryview:
        """Bytes of an object, fewer where it ends before."""
        return memoryview(self._ask("read", lambda: self._raw.get_range(self._name(number), start=start, end=stop)))

    def delete(self, numbers: Collection[int]) -> None:
        """Remove objects, if they are there."""
        self._ask("delete", lambda: self._delete([self._name(number) for number in numbers]))

    def clear(self) -> None:
        """Remove all objects below the prefix."""
        self._ask("delete", self._clear)

    def _clear(self) -> None:
        pages = self._raw.list(self.prefix)  # pyright: ignore[reportUnknownMemberType]
        for page in pages:
            self._delete([found["path"] for found in page])

    def _delete(self, names: list[str]) -> None:
        try:
            self._raw.delete(names)
        except FileNotFoundError:  # of one of them, where it is not all the same
            for name in names:
                with suppress(FileNotFoundError):
                    self._raw.delete(name)

    def _name(self, number: int) -> str:
        return f"{self.prefix}/{number:08x}"

    def _ask(self, verb: str, do: Callable[[], _T]) -> _T:
        from obstore.exceptions import BaseError

        if time.monotonic() < self._away_until:
            raise StoreError(Cause.TIMEOUT, f"{verb} an object: the server does not answer")
        try:
            answer = do()
        except FileNotFoundError as error:
            raise StoreError(Cause.MISSING, f"{verb} an object: {one_line(error)}") from None
        except (BaseError, OSError) as error:
            self._away_until = time.monotonic() + _AWAY_S
            if not self._is_away:
                self._is_away = True
                logger.warning("tenuto: an object store does not %s: %s; trying again later", verb, one_line(error))
            raise StoreError(Cause.IO_ERROR, f"{verb} an object: {one_line(error)}") from None
        if self._is_away:
            self._is_away = False
            logger.warning("tenuto: an object store answers again: %s", self.prefix)
        return answer


class Trash:
    """Objects to be removed in the background, unless they are written again before."""

    def __init__(self, bucket: Bucket, threads: ThreadPoolExecutor) -> None:
        self._bucket = bucket
        self._threads = threads
        self._changed = threading.Condition()
        self._waiting: set[int] = set()
        self._going: set[int] = set()
        self._is_sweeping = False
        self._is_closed = False

    def add(self, numbers: Iterable[int]) -> None:
        """Remove these soon. Does not wait for the server."""
        with self._changed:
            self._waiting.update(numbers)
            if not self._waiting or self._is_sweeping or self._is_closed:
                return
            self._is_sweeping = True
        self._threads.submit(self._sweep)

    def rescue(self, numbers: Iterable[int]) -> None:
        """Don't remove these: they are written now. Waits for a removal of one that is under way."""
        with self._changed:
            self._waiting.difference_update(numbers)
            self._changed.wait_for(lambda: self._going.isdisjoint(numbers))

    def close(self) -> None:
        """Remove nothing more; what is left is removed with the volume, or when its place is used again."""
        with self._changed:
            self._is_closed = True

    def _sweep(self) -> None:
        while True:
            with self._changed:
                self._going = set(islice(self._waiting, _MOST_DELETED))
                self._waiting -= self._going
                if not self._going or self._is_closed:
                    self._going = set()
                    self._is_sweeping = False
                    self._changed.notify_all()
                    return
            try:
                self._bucket.delete(self._going)
                left = set[int]()
            except StoreError:
                left = self._going  # with the next ones
            with self._changed:
                self._waiting |= left
                self._going = set()
                self._is_sweeping = not left
                self._changed.notify_all()
                if left:
                    return


def one_line(error: BaseException) -> str:
    """What went wrong, without what obstore says below its first line."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]
