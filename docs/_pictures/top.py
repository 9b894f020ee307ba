"""Makes docs/pictures/top.svg: a frame of `tenuto top` beside a real engine with a tiny model.

From the root of the repository: PYTHONPATH=. .venv/bin/python docs/_pictures/top.py
"""

from __future__ import annotations

import os
import random
import socket
import sys
import tempfile
import time
from collections.abc import Sequence
from html import escape
from pathlib import Path

os.environ.update(
    VLLM_ENABLE_V1_MULTIPROCESSING="0", OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1",
    DO_NOT_TRACK="1", VLLM_LOGGING_LEVEL="ERROR",
)  # fmt: skip

from tenuto.cli.top.frame import Window, frame
from tenuto.cli.top.lines import FREE, FULL, Line, Style, width_of
from tenuto.cli.top.looks import Seen
from tenuto.cli.top.sources import EventsWatcher, MetricsWatcher, stop
from tests.engine.tiny import Engine, make_model, prompt

PICTURE = Path(__file__).resolve().parents[1] / "pictures" / "top.svg"
WINDOW = Window(92, 26)
SECONDS = 20.0
SHOWN = "zmq://127.0.0.1:5557", "http://127.0.0.1:9400/metrics"
"""In the place of the ports that were free."""

_FONT = "font-family='DejaVu Sans Mono, Menlo, Consolas, monospace' font-size='13'"
CELL, LINE, MARGIN = 8.0, 18.0, 14.0  # pixels
COLOURS = {
    Style.PLAIN: "#d7dce0", Style.TITLE: "#ffffff", Style.FAINT: "#8b949c", Style.GOOD: "#7fc98f",
    Style.WARN: "#e3b341", Style.BAD: "#f47067", Style.BAR: "#56b6c2",
}  # fmt: skip


def free_ports() -> tuple[int, int]:
    """The first has a free one behind it."""
    while True:
        with socket.socket() as one, socket.socket() as two, socket.socket() as other:
            one.bind(("127.0.0.1", 0))
            other.bind(("", 0))
            port = one.getsockname()[1]
            try:
                two.bind(("127.0.0.1", port + 1))
            except OSError:
                continue
            return port, other.getsockname()[1]


def serve(engine: Engine, until: float) -> None:
    """Conversations that begin alike and come back, while the engine's own cache is emptied now and then."""
    rng = random.Random(7)
    talks = [0] * 16  # how many turns each has had, of all that began in its place
    while time.monotonic() < until:
        batch = []
        for _ in range(3):
            at = min(rng.randrange(16), rng.randrange(16))
            number, turn = divmod(talks[at], 6)
            talks[at] += 1
            batch.append(prompt(1 + at % 9, 256) + prompt(100 + at + 16 * number, 200 * turn + 200))
        engine.generate(*batch, n_tokens=4)
        if rng.random() < 0.4:
            while engine.leader.has_pending:
                engine.core.step_fn()
            engine.forget()


def look(folder: Path) -> Seen:
    """What was seen of an engine in the middle of its work."""
    port, metrics_port = free_ports()
    settings = {
        "tiers": {"host": {"capacity": "24 MiB"}, "disk": {"capacity": "128 MiB", "file_bytes": "8 MiB"}},
        "runtime": {"metrics_port": metrics_port},
        "events": {"url": f"zmq://127.0.0.1:{port}", "node": "gpu-1", "worker": "llama-0"},
    }
    engine = Engine(make_model(folder / "model"), folder / "root", settings)
    events = EventsWatcher(f"zmq://127.0.0.1:{port}", SHOWN[0], 1, 2.0)
    endpoint = MetricsWatcher(f"http://127.0.0.1:{metrics_port}/metrics", 2.0)
    for watcher in (events, endpoint):
        watcher.start()
    try:
        serve(engine, time.monotonic() + SECONDS)
        seen = endpoint.seen
        return Seen(
            time.monotonic(), (events.seen,), (type(seen)(SHOWN[1], seen.now, seen.before, seen.fault),)
        )  # fmt: skip
    finally:
        stop([events, endpoint])
        engine.close()


def draw(lines: Sequence[Line], window: Window) -> str:
    """An SVG of a terminal. Each piece has its place and its width, whatever the font; bars are drawn."""
    width, height = window.width * CELL + 2 * MARGIN, len(lines) * LINE + 2 * MARGIN
    size = f"width='{width:g}' height='{height:g}' viewBox='0 0 {width:g} {height:g}'"
    parts = [
        f"<svg xmlns='http://www.w3.org/2000/svg' {size} {_FONT}>",
        "<title>tenuto top beside an engine</title>",
        "<rect width='100%' height='100%' rx='6' fill='#1d2125'/>",
    ]
    for number, line in enumerate(lines):
        x, top = MARGIN, MARGIN + number * LINE
        for text, style in line:
            n_cells = width_of(text)
            parts += _piece(text, style, x, top, n_cells * CELL)
            x += n_cells * CELL
    return "\n".join([*parts, "</svg>\n"])


def _piece(text: str, style: Style, x: float, top: float, width: float) -> list[str]:
    if set(text) <= {FULL, FREE}:
        if not text:
            return []
        shade = "" if text[0] == FULL else " fill-opacity='0.35'"
        box = f"x='{x:g}' y='{top + 3:g}' width='{width:g}' height='{LINE - 5:g}'"
        return [f"<rect {box} fill='{COLOURS[style]}'{shade}/>"]
    start = len(text) - len(text.lstrip())
    word = text.strip()
    if not word:
        return []
    place = f"x='{x + start * CELL:g}' y='{top + 13:g}' textLength='{width_of(word) * CELL:g}'"
    weight = " font-weight='bold'" if style is Style.TITLE else ""
    # A no-break space is kept by every viewer, however many there are.
    return [f"<text {place} fill='{COLOURS[style]}'{weight}>{escape(word).replace(' ', chr(160))}</text>"]


def main() -> None:
    """Run an engine, look at it, draw."""
    with tempfile.TemporaryDirectory() as folder:
        seen = look(Path(folder))
    lines, furthest = frame(seen, f"{time.strftime('%H:%M:%S')}, every 2 s; q ends", WINDOW)
    PICTURE.write_text(draw(lines, WINDOW), "utf-8")
    sys.stdout.write("\n".join("".join(text for text, _ in line) for line in lines) + f"\n{furthest} below\n")


if __name__ == "__main__":
    main()
