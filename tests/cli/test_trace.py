"""`tenuto trace`: boxes at the right places, and what is said of them."""

import re
from dataclasses import replace
from itertools import pairwise
from xml.etree import ElementTree as ET

import pytest

from tenuto.cli.main import main
from tenuto.cli.trace.timeline import draw_timeline, hidden_line
from tenuto.traces import COLOURS, Span, read_trace, to_json

pytestmark = pytest.mark.unit

# ten milliseconds, so that a millisecond is a tenth of the plot
SPANS = [
    Span("load", 100.000, 100.004, "disk", 0, 4_000_000),
    Span("compute", 100.002, 100.006, "compute stream", 0),
    Span("store", 100.004, 100.010, "lane", 12),
    Span("gather", 100.005, 100.006, "lane", 12, 8),
    Span("wait", 100.007, 100.00701, "engine"),
]
LEFT, WIDTH = 190, 1280 - 190 - 24
NAMESPACE = "{http://www.w3.org/2000/svg}"


def parse(picture):
    """(root, boxes by tooltip's first word: (x, y, width, colour, text or None, tooltip))"""
    root = ET.fromstring(picture)
    boxes = {}
    for group in root.iter(f"{NAMESPACE}g"):
        rect, tip, text = (group.find(NAMESPACE + kind) for kind in ("rect", "title", "text"))
        x, y, width = (float(rect.get(key)) for key in ("x", "y", "width"))
        name = re.match(r"(\d+ spans of )?(\w+)", tip.text)[0]
        boxes[name] = x, y, width, rect.get("fill"), None if text is None else text.text, tip.text
    return root, boxes


def texts(root):
    return [text.text or "" for text in root.iter(f"{NAMESPACE}text")]


def test_boxes_are_where_their_times_are_with_colours_and_layers():
    root, boxes = parse(draw_timeline(SPANS, "a title"))
    places = {name: ((x - LEFT) / WIDTH, width / WIDTH) for name, (x, _, width, *_) in boxes.items()}
    assert places == {
        "load": pytest.approx((0.0, 0.4), abs=1e-4),
        "compute": pytest.approx((0.2, 0.4), abs=1e-4),
        "store": pytest.approx((0.4, 0.6), abs=1e-4),
        "gather": pytest.approx((0.5, 0.1), abs=1e-4),
        "wait": pytest.approx((0.7, 0.001), abs=1e-4),
    }
    assert {name: fill for name, (*_, fill, _, _) in boxes.items()} == {name: f"#{COLOURS[name]:06x}" for name in boxes}
    assert {name: text for name, (*_, text, _) in boxes.items()} == {
        "load": "0", "compute": "0", "store": "12", "gather": "12", "wait": None
    }  # fmt: skip
    assert boxes["load"][-1] == "load, layer 0; 4 ms from 0 µs on; 4,000,000 bytes; 1 GB/s"
    assert "a title" in texts(root)


def test_rows_are_tracks_those_that_compute_first_and_what_is_nested_lies_below():
    root, boxes = parse(draw_timeline(SPANS))
    y = {name: y for name, (_, y, *_) in boxes.items()}
    assert y["compute"] < y["load"] < y["store"] < y["gather"] < y["wait"]
    lines = [float(line.get("y1")) for line in root.iter(f"{NAMESPACE}line") if line.get("class") == "row"]
    assert len(lines) == 4
    assert sum(y["store"] < line < y["gather"] for line in lines) == 0
    labels = [text for text in texts(root) if text in {"compute stream", "disk", "lane", "engine"}]
    assert labels == ["compute stream", "disk", "lane", "engine"]
    assert float(root.get("height")) > y["wait"] + 18


def test_the_legend_has_the_names_there_are():
    root, _ = parse(draw_timeline([*SPANS[:2], replace(SPANS[0], name="odd")]))
    legend = [rect.get("fill") for rect in root.iter(f"{NAMESPACE}rect") if rect.get("class") == "legend"]
    assert legend[:2] == [f"#{COLOURS[name]:06x}" for name in ("load", "compute")]
    assert len(legend) == 3
    assert [text for text in texts(root) if text in {"load", "compute", "store", "odd"}] == ["load", "compute", "odd"]


@pytest.mark.parametrize(
    ("seconds", "labels"),
    [
        (0.010, [f"{n} ms" for n in range(11)]),
        (0.0123, ["0 ms", "2 ms", "4 ms", "6 ms", "8 ms", "10 ms", "12 ms"]),
        (35.0, ["0 s", "5 s", "10 s", "15 s", "20 s", "25 s", "30 s", "35 s"]),
        (4e-6, ["0 µs", "0.5 µs", "1 µs", "1.5 µs", "2 µs", "2.5 µs", "3 µs", "3.5 µs", "4 µs"]),
    ],
)
def test_the_axis_has_round_times_at_their_places(seconds, labels):
    root, _ = parse(draw_timeline([Span("load", 7.0, 7.0 + seconds, "a")]))
    assert [text for text in texts(root) if re.fullmatch(r"[\d.]+ (µs|ms|s)", text)] == labels
    ticks = [float(line.get("x1")) for line in root.iter(f"{NAMESPACE}line") if line.get("class") == "tick"]
    steps = [after - before for before, after in pairwise(ticks)]
    assert ticks[0] == LEFT
    assert steps == pytest.approx([steps[0]] * len(steps), abs=0.02)
    assert ticks[-1] <= LEFT + WIDTH + 0.01


def test_a_window_cuts_and_keeps_the_axis_of_the_whole():
    window = (100.003, 100.006)
    picture = draw_timeline(SPANS, window=window)
    root, boxes = parse(picture)
    assert set(boxes) == {"load", "compute", "store", "gather"}
    assert [(boxes["load"][0] - LEFT) / WIDTH, boxes["load"][2] / WIDTH] == pytest.approx([0, 1 / 3], abs=1e-4)
    assert boxes["compute"][2] == pytest.approx(WIDTH, abs=0.02)
    assert {"3 ms", "4 ms", "6 ms"} < set(texts(root))
    assert hidden_line(SPANS, window) in texts(root)
    assert hidden_line(SPANS, window).startswith("100%")


def test_the_hidden_share_is_a_line():
    assert hidden_line(SPANS, (100.0, 100.01)) == "50% of the time in which loads run is hidden under computing."
    assert hidden_line(SPANS[1:], (100.0, 100.01)) == "No load takes any time."
    bare = [span for span in SPANS if span.name != "compute"]
    assert hidden_line(bare, (100.0, 100.01)) == "It has no spans of computing to tell what is hidden."


def test_what_is_too_narrow_to_be_told_apart_is_one_box():
    many = [Span("load", n * 1e-6, n * 1e-6 + 5e-7, "a", n) for n in range(10_000)]
    picture = draw_timeline([*many, Span("store", 0.011, 0.0115, "a", 1)])
    groups = picture.count("<g class='span'>")
    assert groups < 3000
    told = [int(n) for n in re.findall(r">(\d+) spans of load<", picture)]
    assert sum(told) + (groups - len(told) - 1) == 10_000


def test_names_of_other_programs_are_anything():
    odd = Span("<&'\"\x00\n>", 0.0, 1.0, "]]>\x07" * 20, 10**9)
    root = ET.fromstring(draw_timeline([odd], "a < b & c"))
    assert "a < b & c" in texts(root)


@pytest.mark.parametrize("window", [None, (1.0, 1.0), (2.0, 1.0), (0.0, float("inf")), (float("nan"), 1.0)])
def test_without_time_there_is_nothing_to_draw(window):
    with pytest.raises(ValueError, match="no time"):
        draw_timeline([] if window is None else SPANS, window=window)


def test_the_command_writes_the_picture_beside_the_trace_or_where_it_is_told(tmp_path, capsys):
    path = tmp_path / "run-rank0.json"
    path.write_bytes(to_json(SPANS))
    assert main(["trace", str(path)]) == 0
    beside = tmp_path / "run-rank0.svg"
    assert capsys.readouterr().out == f"{beside}: 5 spans. {hidden_line(SPANS, (100.0, 100.01))}\n"
    assert len(parse(beside.read_text("utf-8"))[1]) == 5
    out = tmp_path / "part.svg"
    assert main(["trace", str(path), "--out", str(out), "--from-ms", "3", "--to-ms", "6"]) == 0
    assert set(parse(out.read_text("utf-8"))[1]) == {"load", "compute", "store", "gather"}
    assert len(parse(draw_timeline(read_trace(path)))[1]) == 5


def test_what_can_not_be_drawn_or_written_is_one_line(tmp_path, capsys):
    path = tmp_path / "t.json"
    path.write_bytes(to_json([]))
    for words, said in (
        ([str(path)], f"tenuto trace: {path}: nothing to draw: "),
        ([str(tmp_path / "none")], f"tenuto trace: {tmp_path / 'none'}: can't be read ("),
        ([str(path), "--to-ms", "nan"], f"tenuto trace: {path}: nothing to draw: "),
    ):
        assert main(["trace", *words]) == 1
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(said)
    path.write_bytes(to_json(SPANS))
    assert main(["trace", str(path), "--out", str(tmp_path)]) == 1
    assert capsys.readouterr().err == f"tenuto: {tmp_path}: Is a directory\n"
