"""Threads of which one runs at a time, and which is drawn: a seed tells the whole story.

A thread goes on until it waits or offers to pause. `Threads` has what the package uses of `threading`.
"""

import threading as real


class Over(BaseException):
    """The story has ended; unwinds the threads that are left."""


class Deadlock(BaseException):
    """Every thread waits, and nothing can happen any more."""


class _Task:
    def __init__(self):
        self.turn = real.Semaphore(0)
        self.may_go_on = lambda: True
        self.thread = None


class Threads:
    """`step` does some of what happens by itself, and says whether there was anything."""

    def __init__(self, rng, step):
        self._rng, self._step = rng, step
        self._main = self.running = _Task()
        self._tasks = [self._main]
        self._is_over = False
        self._error = None

    def pause(self, until=lambda: True):
        """Let others go on, and come back when `until()`."""
        if self._is_over:
            raise Over
        if self._error is not None:
            raise self._error
        me = self.running
        me.may_go_on = until
        following = self._draw()
        if following is not me:
            self.running = following
            following.turn.release()
            me.turn.acquire()
        if self._is_over and me is not self._main:
            raise Over
        if self._error is not None and me is self._main:
            raise self._error

    def _draw(self):
        while not (ready := [task for task in self._tasks if task.may_go_on()]):
            if not self._step():
                raise Deadlock
        return self._rng.choice(ready)

    def close(self):
        """Unwind all threads; on the main one."""
        self._is_over = True
        for task in self._tasks[1:]:
            task.turn.release()
            task.thread.join()

    def run(self, do):
        """A thread that does this, from its next turn on."""
        task = _Task()

        def live():
            task.turn.acquire()
            try:
                if not self._is_over:
                    do()
            except Over:
                return
            except BaseException as error:  # noqa: BLE001, to be raised by the main thread
                self._error = error
            if self._is_over:
                return
            self._tasks.remove(task)
            try:
                following = self._main if self._error is not None else self._draw()
            except Deadlock as error:
                self._error, following = error, self._main
            self.running = following
            following.turn.release()

        task.thread = real.Thread(target=live, daemon=True)
        task.thread.start()
        self._tasks.append(task)
        return task

    def has_ended(self, task):
        """Whether it has done all that it had to do."""
        return task not in self._tasks

    def Thread(self, target, name="", daemon=True):  # noqa: N802
        return _Thread(self, target)

    def Lock(self):  # noqa: N802
        return Lock(self)

    def RLock(self):  # noqa: N802
        return Condition(self)

    def Condition(self):  # noqa: N802
        return Condition(self)


class _Thread:
    def __init__(self, threads, target):
        self._threads, self._target = threads, target

    def start(self):
        self._task = self._threads.run(self._target)

    def join(self, timeout=None):
        self._threads.pause(lambda: not self.is_alive())

    def is_alive(self):
        return not self._threads.has_ended(self._task)


class Lock:
    """`threading.Lock`."""

    def __init__(self, threads):
        self._threads, self._holder, self._depth = threads, None, 0

    def acquire(self):
        self._threads.pause(lambda: self._holder is None)
        self._holder, self._depth = self._threads.running, 1

    def release(self):
        self._depth -= 1
        if not self._depth:
            self._holder = None

    def __enter__(self):
        self.acquire()
        return self

    def __exit__(self, *_):
        self.release()


class Condition(Lock):
    """`threading.Condition`; a wait with a timeout may end at any time."""

    def __init__(self, threads):
        super().__init__(threads)
        self._waiting = []

    def acquire(self):
        if self._holder is self._threads.running:
            self._depth += 1
        else:
            super().acquire()

    def wait(self, timeout=None):
        turn = [timeout is not None]
        self._waiting.append(turn)
        depth, self._depth, self._holder = self._depth, 0, None
        self._threads.pause(lambda: turn[0] and self._holder is None)
        self._holder, self._depth = self._threads.running, depth
        self._waiting = [other for other in self._waiting if other is not turn]

    def wait_for(self, is_so, timeout=None):
        while not is_so():
            self.wait()
        return True

    def notify(self, n=1):
        for turn in self._waiting[:n]:
            turn[0] = True

    def notify_all(self):
        self.notify(len(self._waiting))
