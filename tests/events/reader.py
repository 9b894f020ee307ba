"""A reader on a thread of its own."""

import threading
import time

from tenuto.events import Index, subscribe

CATCH_UP_S = 20.0


class Reader(threading.Thread):
    """Keeps an index until it is stopped."""

    def __init__(self, url, index=None):
        super().__init__(daemon=True)
        self.url = url
        self.index = Index() if index is None else index
        self.is_stopped = False
        self.n_snapshots = self.n_gaps = self.n_messages = 0
        self.start()

    def run(self):
        with subscribe(self.url) as events:
            while not self.is_stopped:
                if (message := events.next(0.05)) is not None:
                    self.index.take(message)
                    self.n_messages += 1
                self.n_snapshots, self.n_gaps = events.n_snapshots, events.n_gaps

    def wait(self):
        """Until it has heard of somebody."""
        until = time.monotonic() + CATCH_UP_S
        while not self.n_messages and time.monotonic() < until:
            time.sleep(0.01)

    def stop(self):
        self.is_stopped = True
        self.join(10.0)
        assert not self.is_alive()


def hear(reader, check):
    """Wait until the index is right, and stays so."""
    until = time.monotonic() + CATCH_UP_S
    while True:
        try:
            check(reader.index)
        except (AssertionError, RuntimeError):  # it changes while we look
            if time.monotonic() > until:
                reader.stop()
                check(reader.index)
                raise
            time.sleep(0.02)
        else:
            break
    time.sleep(0.15)
    reader.stop()
    check(reader.index)
