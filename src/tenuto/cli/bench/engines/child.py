"""One engine in a process of its own: `python -m tenuto.cli.bench.engines.child`.

Requests come on standard input and answers go to standard output, a line of JSON each; between them the process
waits in a read. Both are taken away from everything else first: what engines and libraries print goes to standard
error, which the parent keeps as a log. An exception ends the process with its traceback there.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import TextIO

import msgspec

from tenuto.cli.bench.engines.messages import (
    Ask,
    Done,
    Forget,
    Reply,
    Request,
    Serve,
    Settle,
    Start,
    Stop,
    Wire,
    Wired,
    decode_request,
    encode,
)


def take_standard_streams() -> tuple[TextIO, TextIO]:
    """(requests, answers); descriptor 0 becomes empty and 1 a copy of 2."""
    requests = os.fdopen(os.dup(0), "r", encoding="utf-8")
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return requests, answers


def main() -> None:
    """Answer until told to stop, or until nobody asks any more."""
    requests, answers = take_standard_streams()
    first = decode_request(requests.readline())
    if not isinstance(first, Start):
        raise TypeError(f"the first request must make the engine, got {first}")

    def say(reply: Reply) -> None:
        answers.write(encode(reply) + "\n")
        answers.flush()

    from tenuto.cli.bench.engines.engine import Engine

    engine = Engine(first)
    answer = make_answering(engine)
    say(engine.facts())
    while line := requests.readline():
        request = decode_request(line)
        if isinstance(request, Stop):
            say(_timed(engine.close))
            return
        say(answer(request))
    engine.close()


def make_answering(engine: object) -> Callable[[Request], Reply]:
    """A function that answers requests by this `Engine`."""
    from tenuto.cli.bench.engines.engine import Engine
    from tenuto.cli.bench.engines.forwards import record_forwards
    from tenuto.cli.bench.engines.pump import run_traffic
    from tenuto.cli.bench.engines.wire import WireMeter

    assert isinstance(engine, Engine)
    wire: WireMeter | None = None

    def answer(request: Request) -> Reply:
        nonlocal wire
        match request:
            case Ask(seed, n_tokens, shared_seed, n_shared, is_traced):
                with record_forwards() if is_traced else nullcontext() as recorder:
                    asked = engine.ask(seed, n_tokens, shared_seed, n_shared)
                return asked if recorder is None else msgspec.structs.replace(asked, spans=recorder.spans())
            case Forget():
                return _timed(engine.forget)
            case Settle():
                return _timed(engine.settle)
            case Wire(n_bytes):
                if wire is None or wire.n_bytes != n_bytes:
                    wire = WireMeter(n_bytes)
                return Wired(wire.measure())
            case Serve(traffic):
                return run_traffic(engine, traffic)
            case Start() | Stop():
                raise TypeError(f"not now: {request}")

    return answer


def _timed(action: Callable[[], None]) -> Done:
    began = time.perf_counter()
    action()
    return Done(time.perf_counter() - began)


if __name__ == "__main__":
    main()
