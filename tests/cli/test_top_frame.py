"""`tenuto top`: what was seen, as lines; figures of two looks."""

import json
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenuto import metrics
from tenuto.cli.top.figures import as_json, engines
from tenuto.cli.top.frame import Window, frame, whole
from tenuto.cli.top.lines import Style, coloured, cut, fit, in_ascii, plain, width_of
from tenuto.cli.top.looks import EventsLook, EventsSeen, Holding, MetricsSeen, Seen
from tenuto.cli.top.sources import MetricsWatcher, read_engines
from tests.cli.top_looks import NOW, endpoint, events, seen, values, worker

pytestmark = pytest.mark.unit

TITLE = "14:03:22, every 1 s; q ends"

BOTH = """\
tenuto top  14:03:22, every 1 s; q ends
events   zmq://127.0.0.1:5557  1 worker, 0 gaps, 1 snapshot
metrics  http://127.0.0.1:9400/metrics  1 engine, answered in 4.0 ms

node/llama-0 rank 0  heard 0.2 s ago, lag 12 ms
tier              blocks       size stored/s removed/s  chains  largest
host               2,048    4.0 GiB       50        25      37  64 a3f09c  51 0…
disk              18,420   36.0 GiB    4,650        45     412  64 a3f09c

engine 0 tiny  3 requests
hit rate        all  engine   host   disk   peer computed    tokens asked
now             60%     10%    40%    10%     0%      40%         1,000/s
since start     60%     10%    40%    10%     0%      40%           3,000
tier           used         of                full     blocks  in use  evicted/s
host        2.0 GiB    4.0 GiB  ██████░░░░░░   50%      1,024      64         20
disk        0 bytes    0 bytes  ░░░░░░░░░░░░     -          0       0          0
flow                         now    blocks/s   in flight   mean time       moved
device to host       512.0 MiB/s          64           2       25 ms     1.5 GiB
host to disk           0 bytes/s           0           0           -     0 bytes
writes  12 blocks wait; left out: 5 host_full
loads   10/s, host 4.0 ms; it computes 12,000 tokens/s
events  100/s, 0 wait, lag 4.0 ms; 0 replays, 0 snapshots, 0 lost
errors  none
""".splitlines()


def text(what, title=TITLE):
    return [plain(line) for line in whole(what, title)]


def test_an_engine_with_both_sources_fits_a_window_of_80_by_24():
    both = seen(events(worker(2), before=(worker(1),)), endpoint(values(3), values(1)))
    lines, furthest = frame(both, TITLE, Window(80, 24))
    assert [plain(line) for line in lines] == BOTH
    assert furthest == 0


@given(st.integers(1, 130), st.integers(1, 60), st.integers(0, 100), st.integers(0, 4))
def test_a_frame_fits_any_window_and_begins_with_the_title(width, height, scroll, n_workers):
    workers = [worker(name=f"機械-{i}") for i in range(n_workers)]
    lines, furthest = frame(
        seen(events(*workers), endpoint(values(1))), TITLE, Window(width, height, scroll)
    )  # fmt: skip
    assert len(lines) <= height
    assert all(width_of(plain(line)) <= width for line in lines)
    assert plain(lines[0])[:1] == "t" or width == 1
    assert furthest >= 0


FIFTY = """\
tenuto top  14:03:22, every 1 s; q ends
events   zmq://127.0.0.1:5557  1 worker, 0 gaps, …
metrics  http://127.0.0.1:9400/metrics  1 engine,…

node/llama-0 rank 0  heard 0.2 s ago, lag 12 ms
tier              blocks       size stored/s
host               2,048    4.0 GiB       50
disk              18,420   36.0 GiB    4,650

engine 0 tiny  3 requests
hit rate        all  engine   host   disk   peer
now             60%     10%    40%    10%     0%
since start     60%     10%    40%    10%     0%
tier           used         of  full     blocks
host        2.0 GiB    4.0 GiB   50%      1,024
disk        0 bytes    0 bytes     -          0
flow                         now    blocks/s
device to host       512.0 MiB/s          64
host to disk           0 bytes/s           0
writes  12 blocks wait; left out: 5 host_full
loads   10/s, host 4.0 ms; it computes 12,000 tok…
events  100/s, 0 wait, lag 4.0 ms; 0 replays, 0 s…
errors  none
all of it: a wider window, or --once
""".splitlines()


def test_a_narrow_window_has_whole_columns_and_says_where_the_others_are():
    both = seen(events(worker(2), before=(worker(1),)), endpoint(values(3), values(1)))
    assert [plain(line) for line in frame(both, TITLE, Window(50, 24))[0]] == FIFTY
    low = [plain(line) for line in frame(both, TITLE, Window(50, 12))[0]]
    assert low[-1] == "11 more lines below; all columns: --once"
    assert plain(frame(both, TITLE, Window(79, 30))[0][-1]) == FIFTY[-1]
    assert plain(frame(seen(events()), TITLE, Window(73, 30))[0][-1]).startswith("disk ")
    assert plain(frame(seen(events()), TITLE, Window(72, 30))[0][-1]) == FIFTY[-1]
    away = seen(MetricsSeen("http://127.0.0.1:9400/metrics", fault="Connection refused"))
    assert [plain(line) for line in frame(away, TITLE, Window(50, 24))[0]][1:] == [
        "metrics  http://127.0.0.1:9400/metrics  Connectio…", FIFTY[-1]
    ]  # fmt: skip


def test_empty_lines_go_first():
    both = seen(events(worker(2), before=(worker(1),)), endpoint(values(3), values(1)))
    lines, furthest = frame(both, TITLE, Window(80, 22))
    assert [plain(line) for line in lines] == [line for line in BOTH if line][:22]
    assert furthest == 0
    assert len(lines) == 21


def test_all_lines_are_reached_by_scrolling_and_the_sources_stay():
    many = seen(events(*(worker(name=f"w{i}") for i in range(9))))
    body = [line for line in text(many)[2:] if line]
    found = []
    _, furthest = frame(many, TITLE, Window(120, 12))
    for scroll in range(furthest + 5):
        lines = [plain(line) for line in frame(many, TITLE, Window(120, 12, scroll))[0]]
        assert lines[:2] == text(many)[:2]
        found += lines[2:-1]
        assert lines[-1].endswith("more lines below: arrows, page keys") == (scroll < furthest)
    assert set(body) <= set(found)


def test_sources_that_are_away_say_so_and_what_was_seen_stays():
    away = Seen(
        NOW,
        (EventsSeen("zmq://h:1", EventsLook(NOW, (), 0, 0, 0)), EventsSeen("zmq://h:3", EventsLook(NOW, (), 0, 0, 1))),
        (MetricsSeen("http://h:9/metrics", fault="Connection refused"), MetricsSeen("http://h:8/metrics")),
    )
    assert text(away, "")[1:] == [
        "events   zmq://h:1  nobody answers; it is tried again",
        "events   zmq://h:3  answers; no worker has told anything yet",
        "metrics  http://h:9/metrics  Connection refused; it is tried again",
        "metrics  http://h:8/metrics  asked",
    ]
    assert away.has_heard  # one of them
    lines = whole(seen(events(worker(heard_s=NOW - 90), note="it is odd", note_s=NOW - 90)), "")
    assert [plain(line) for line in lines[1:3]] == [
        "events   zmq://127.0.0.1:5557  silent for 1 min", "         it is odd"
    ]  # fmt: skip
    assert lines[1][-1][1] is lines[4][2][1] is Style.BAD
    well = text(seen(events(note="it was odd", note_s=NOW - 90)), "")
    assert not any("odd" in line for line in well)
    gone = replace(endpoint(values(1), fault="timed out"), url="http://h/metrics")
    gone = replace(gone, now=replace(gone.now, at_s=NOW - 7))
    lines = text(seen(gone), "")
    assert lines[1] == "metrics  http://h/metrics  timed out; it is tried again (what is shown is 7.0 s old)"
    assert lines[3] == "engine 0 tiny  3 requests, not answering now"


def test_one_look_tells_no_rates():
    lines = text(Seen(NOW, (EventsSeen("zmq://h:1", events().now),), (endpoint(values(2)),)), "")
    assert [line.split()[4:6] for line in lines if line.startswith(("host  ", "disk  "))][:2] == [["-", "-"]] * 2
    (now,) = [line.split() for line in lines if line.startswith("now ")]
    assert now == ["now", "-", "-", "-", "-", "-", "-", "-/s"]
    (since,) = [line.split() for line in lines if line.startswith("since start")]
    assert since[2:] == ["60%", "10%", "40%", "10%", "0%", "40%", "2,000"]


def test_an_engine_that_began_anew_has_no_rates_and_no_hits_before_it_is_asked():
    (engine,) = engines(endpoint(values(1), values(3)))
    assert engine.rate(metrics.ASKED_TOKENS) is None
    assert engine.mean(metrics.LOAD_SECONDS, "host") is None
    (idle,) = engines(endpoint(values(1), values(1)))
    assert idle.share(metrics.ENGINE_TOKENS, since_start=False) is None
    assert idle.rate(metrics.ASKED_TOKENS) == 0
    (late,) = engines(endpoint(values(1), values(1) | {"tenuto_loaded_tokens_total host": 0.0}))
    assert late.rate(metrics.LOADED_TOKENS, "host") == 200


@pytest.mark.parametrize(("before", "now"), [(0.0, 1e308), (-1e308, 1e308), (1.0, 5e-324), (1e308, -1e308)])
def test_numbers_that_leap_are_no_rates_and_end_nothing(before, now):
    looks = [dict.fromkeys(values(1) | {"tenuto_gated_tokens_total compute": 1}, n) for n in (now, before)]
    leapt = replace(endpoint(*looks), now=replace(endpoint(*looks).now, at_s=NOW - 1.9))
    for width in (40, 120):
        lines, _ = frame(seen(leapt), "", Window(width, 60))
        assert not any("inf" in plain(line).split() or "nan" in plain(line) for line in lines)
    (engine,) = as_json(seen(leapt))["metrics"][0]["engines"]
    assert json.loads(json.dumps(engine, allow_nan=False)) == engine
    assert engine["values"]["tokens.asked"] == now
    if now == 1e308:
        assert engine["per_s"]["tokens.asked"] is None


def test_what_is_not_looked_at_any_more_says_so_and_has_no_rates():
    stream, metrics_seen = events(worker(2), before=(worker(1),)), endpoint(values(3), values(1))
    ended = [replace(source, ended="IndexError: odd") for source in (stream, metrics_seen)]
    lines = text(replace(seen(*ended), at_s=NOW + 7), "")
    said = "looking at it has ended (IndexError: odd): what is shown is 7.0 s old"
    assert [line.split("  ")[-1] for line in lines[1:3]] == [said, said]
    rows = [line.split() for line in lines if line.startswith(("host  ", "now "))]
    assert rows[0][4:6] == ["-", "-"]
    assert rows[1][-1] == "-/s"
    found = as_json(seen(*ended))
    assert [found[kind][0]["fault"] for kind in ("events", "metrics")] == [said.partition(":")[0] + ": odd)"] * 2
    assert as_json(seen(stream))["events"][0]["fault"] == ""
    never = replace(MetricsSeen("http://h/metrics"), ended="OSError")
    assert seen(never).is_whole
    assert text(seen(never), "")[1] == "metrics  http://h/metrics  looking at it has ended (OSError)"


def test_errors_are_red_when_they_are_new():
    bad = {"tenuto_failed_blocks_total disk_to_host timeout": 3.0, "tenuto_corrupt_blocks_total disk": 1.0}
    for before, style in ((values(1), Style.BAD), (values(1) | bad, Style.WARN)):
        line = whole(seen(endpoint(values(2) | bad, before)), "")[-1]
        assert plain(line) == "errors  1 corrupt blocks (disk); 3 blocks not moved (disk_to_host, timeout)"
        assert line[-1][1] is style


def test_volumes_stand_below_their_tier_and_lost_events_are_told():
    more = (Holding("disk", "/fast", 5, 50, 0, 0, 1, ()), Holding("disk", "/slow", 6, 60, 0, 0, 1, ()))
    lines = text(seen(events(worker(more=more, n_lost=1234))), "")
    assert lines[3].endswith(", 1,234 events lost")
    assert [line.split("  ")[0] or line.split()[0] for line in lines[5:]] == ["host", "disk", "/fast", "/slow"]


def test_foreign_names_move_no_cursor_and_wide_letters_take_two_cells():
    lines = whole(seen(events(worker(name="\x1b[2J\nx"))), "")
    assert "\x1b" not in plain(lines[3])
    assert "\n" not in coloured(lines[3])
    assert [width_of(cut("機械学習", n)) for n in range(9)] == [0, 1, 1, 3, 3, 5, 5, 7, 8]
    assert fit("機械", 6, is_right=True) == "  機械"
    foreign = {("m\x1b[2J", "0\x1b]0;x\x07"): {"tenuto_failed_blocks_total \x9b2J timeout": 3.0}}
    told = replace(endpoint(values(1)), url="http://h/\x1b[31m", fault="\x07")
    told = seen(events(note="\x1b[2J", note_s=NOW), replace(told, now=replace(told.now, engines=foreign)))
    for line in whole(told, ""):
        assert plain(line).isprintable()
        assert coloured(((text, Style.PLAIN) for text, _ in line)).isprintable()
    assert "engine 0\\x1b]0;x\\x07 m\\x1b[2J" in "\n".join(text(told, ""))
    assert all(in_ascii(plain(line)).isascii() for line in whole(seen(endpoint(values(1))), ""))


def test_json_has_all_of_it_by_the_names_of_statistics():
    found = as_json(seen(events(worker(2), before=(worker(1),)), endpoint(values(3), values(1))))
    assert json.loads(json.dumps(found)) == found
    tier = found["events"][0]["workers"][0]["tiers"][0]
    assert (tier["tier"], tier["n_blocks"], tier["stored_per_s"], tier["removed_per_s"]) == ("host", 2048, 50, 25)
    assert tier["largest"][0] == {"prefix": "a3f09c" + 26 * "0", "n_blocks": 64}
    engine = found["metrics"][0]["engines"][0]
    assert engine["values"]["tokens.loaded.host"] == 1200
    assert engine["per_s"]["bytes.device_to_host"] == 512 << 20
    assert engine["values"]["host.capacity_bytes"] == 4 << 30


def test_the_guides_picture_is_small_and_of_a_whole_frame():
    picture = Path(__file__).parents[2] / "docs" / "pictures" / "top.svg"
    said = ["".join(text.itertext()) for text in ET.parse(picture).iter("{http://www.w3.org/2000/svg}text")]
    assert picture.stat().st_size < 60_000
    first = {words.split("\xa0\xa0")[0].replace("\xa0", " ") for words in said}
    assert {"tenuto top", "gpu-1/llama-0", "hit rate", "errors"} <= first


VLLMS = """\
# HELP vllm:num_requests_running Number of requests
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="tiny"} 1.0
vllm:broken{{{
# TYPE tenuto_asked_tokens_total counter
tenuto_asked_tokens_total{engine="0",model_name="tiny"} 500.0
tenuto_asked_tokens_total{engine="1",model_name="tiny"} 7.0
tenuto_asked_tokens_created{engine="1",model_name="tiny"} 1.7e9
# TYPE tenuto_failed_blocks_total counter
tenuto_failed_blocks_total{cause="corrupt",engine="0",model_name="tiny",route="disk_to_host"} 2.0
# TYPE tenuto_load_seconds histogram
tenuto_load_seconds_bucket{engine="0",le="0.1",model_name="tiny",tier="host"} 1.0
tenuto_load_seconds_count{engine="0",model_name="tiny",tier="host"} 1.0
tenuto_load_seconds_sum{engine="0",model_name="tiny",tier="host"} 0.25
# TYPE tenuto_tier_bytes gauge
tenuto_tier_bytes{engine="0",model_name="tiny",tier="not ours"} 3.0
tenuto_tier_bytes{engine="0",model_name="tiny"} 3.0
tenuto_tier_bytes{engine="0",model_name="tiny",tier="host"} NaN
# TYPE tenuto_of_a_later_version gauge
tenuto_of_a_later_version{engine="0",model_name="tiny"} 3.0
"""


def test_our_series_are_read_out_of_vllms_by_engine():
    assert read_engines(VLLMS) == {
        ("tiny", "0"): {
            "tenuto_asked_tokens_total": 500, "tenuto_failed_blocks_total disk_to_host corrupt": 2,
            "tenuto_load_seconds_count host": 1, "tenuto_load_seconds_sum host": 0.25,
        },
        ("tiny", "1"): {"tenuto_asked_tokens_total": 7},
    }  # fmt: skip
    assert read_engines("<html>") == {}


def test_an_endpoint_that_fails_keeps_its_last_looks():
    answers = [VLLMS, OSError(111, "Connection refused"), TimeoutError("timed out"), "tenuto_x{", VLLMS]

    def fetch(url):
        answer = answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return answer

    watcher = MetricsWatcher("http://h/metrics", 1.0, fetch)
    faults = []
    for _ in range(5):
        watcher.look()
        faults.append(watcher.seen.fault)
    assert faults[:3] == ["", "Connection refused", "timed out"]
    assert faults[3].startswith("what it says are no metrics (")
    assert faults[4] == ""
    assert watcher.seen.before is not None
