"""Spans: kept by the recorders that are installed, bounded, from any thread; nothing while nobody asks."""

import threading
import time
from types import SimpleNamespace

import pytest

from tenuto.traces import COLOURS, Recorder, Span, add, is_recording, span, spans

pytestmark = pytest.mark.unit


def test_a_span_has_its_name_layer_bytes_thread_and_times():
    with Recorder() as recorder:
        before_s = time.monotonic()
        with span("load", layer=3, n_bytes=5):
            inside_s = time.monotonic()
        after_s = time.monotonic()
    (kept,) = recorder.spans()
    assert (kept.name, kept.layer, kept.n_bytes, kept.track) == ("load", 3, 5, threading.current_thread().name)
    assert before_s <= kept.start_s <= inside_s <= kept.stop_s <= after_s


def test_nothing_is_kept_before_a_recorder_is_installed_and_after_it_is_removed():
    recorder = Recorder()
    with span("load"), recorder, span("store"):
        assert is_recording()
    with span("wait"):
        assert not is_recording()
    recorder.remove()  # again: nothing
    assert [kept.name for kept in recorder.spans()] == ["store"]


def test_each_installed_recorder_gets_everything_and_none_is_installed_twice():
    with Recorder() as one:
        with Recorder() as other, span("gather"):
            pass
        with pytest.raises(ValueError, match="already"):
            one.install()
        with span("scatter"):
            pass
    assert [len(recorder.spans()) for recorder in (one, other)] == [2, 1]


def test_a_decorated_function_is_a_span_at_each_call_whenever_it_was_decorated():
    def double(n):
        """Twice."""
        return 2 * n

    early = span("compute")(double)
    with Recorder() as recorder:
        late = span("compute")(double)
    for traced in (early, late):
        assert (traced(2), traced.__name__, traced.__doc__) == (4, "double", "Twice.")
    assert recorder.spans() == []
    with recorder:
        assert (early(1), late(2)) == (2, 4)
    assert [kept.name for kept in recorder.spans()] == ["compute", "compute"]


def test_what_raises_is_timed_and_still_raises():
    with Recorder() as recorder, pytest.raises(KeyError), span("load"):
        raise KeyError
    assert len(recorder.spans()) == 1


def test_a_name_of_no_colour_is_a_span_too():
    with span("lookup"):
        pass
    with Recorder() as recorder, span("lookup"):
        pass
    assert recorder.spans()[0].name == "lookup"


def test_the_last_spans_stay_and_the_others_are_counted():
    with Recorder(n_spans=3) as recorder:
        for layer in range(5):
            with span("load", layer=layer):
                pass
    assert [kept.layer for kept in recorder.spans()] == [2, 3, 4]
    assert recorder.n_dropped() == 2


def test_threads_have_rows_of_their_own_and_lose_no_span():
    n_threads, n_each = 4, 2000

    def work():
        for _ in range(n_each):
            with span("store"):
                pass

    with Recorder(n_spans=n_threads * n_each - 1) as recorder:
        threads = [threading.Thread(target=work, name="lane") for _ in range(n_threads)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert {kept.track for kept in recorder.spans()} == {"lane", "lane #2", "lane #3", "lane #4"}
    assert (len(recorder.spans()), recorder.n_dropped()) == (n_threads * n_each - 1, 1)


def test_spans_that_were_measured_elsewhere_have_the_row_they_name():
    with Recorder() as recorder:
        add("scatter", 1.0, 1.5, "scatter stream", layer=2, n_bytes=8)
    add("scatter", 2.0, 2.5, "scatter stream")  # nobody is there
    recorder.add("compute", 3.0, 3.0, "compute stream")  # not installed: no matter
    assert recorder.spans() == [
        Span("scatter", 1.0, 1.5, "scatter stream", 2, 8), Span("compute", 3.0, 3.0, "compute stream")
    ]  # fmt: skip


@pytest.mark.parametrize("stop_s", [0.5, float("nan")])
def test_a_span_that_ends_before_it_begins_is_refused(stop_s):
    with pytest.raises(ValueError, match="before it begins"):
        Recorder().add("load", 1.0, stop_s, "a")


def test_where_a_profiler_listens_a_span_is_a_range_with_its_colour(monkeypatch):
    said = []
    domain = SimpleNamespace(
        get_event_attributes=lambda **attributes: attributes,
        push_range=said.append,
        pop_range=lambda: said.append("end"),
    )
    monkeypatch.setattr(spans, "_domain", domain)
    with span("load", layer=3, n_bytes=5), Recorder() as recorder, span("odd"):
        pass
    assert said == [
        {"message": "load 3", "color": COLOURS["load"], "payload": 5},
        {"message": "odd", "color": spans.OTHER_COLOUR, "payload": None},
        "end", "end",
    ]  # fmt: skip
    assert [kept.name for kept in recorder.spans()] == ["odd"]


def test_nvtx_is_used_only_when_it_is_installed_and_a_profiler_listens(monkeypatch):
    class Domain:
        pass

    def find(domain):
        module = SimpleNamespace(Domain=Domain, get_domain=lambda name: domain)
        monkeypatch.setattr(spans.importlib, "import_module", lambda name: module)
        return spans._nvtx_domain()

    listening = Domain()
    assert find(listening) is listening
    assert find(SimpleNamespace()) is None  # what the package gives without a profiler

    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr(spans.importlib, "import_module", missing)
    assert spans._nvtx_domain() is None


@pytest.mark.perf
def test_a_span_that_nobody_asks_for_costs_less_than_a_third_of_a_microsecond():
    def spend(n):
        started_s = time.perf_counter()
        for _ in range(n):
            with span("load", layer=3, n_bytes=5):
                pass
        return (time.perf_counter() - started_s) / n

    assert min(spend(20_000) for _ in range(10)) < 0.3e-6
