"""The process around the core: agents that come and go, orders on a thread beside, reports."""

import json
import socket
import threading
import time
import urllib.error
import urllib.request
from collections import deque
from pathlib import Path

import numpy as np
import pytest

from tenuto.advisor import AdvisorSettings, Move, Sockets
from tenuto.advisor.clocks import OwnClock
from tenuto.advisor.core import Task
from tenuto.advisor.fleet import Fleet, common_volumes
from tenuto.advisor.http import ReportServer
from tenuto.advisor.journal import Journal
from tenuto.advisor.service import Service
from tenuto.advisor.settings import DiskAt, parse_volumes
from tenuto.advisor.silence import Silence
from tenuto.errors import Cause, ConfigError, InvariantError, StoreError
from tenuto.testing.agents import MadeUpAgent
from tests.advisor.advisor_rig import FAST, MIB, NAME, NO_LIMITS, Rig, chain

pytestmark = pytest.mark.unit

WAIT_S = 10.0


class NobodyThere:
    """No engine runs."""

    def find(self, root):
        return []


class Heard:
    """Messages that the test gives."""

    def __init__(self):
        self.messages = deque()

    def next(self, timeout_s):
        if self.messages:
            return self.messages.popleft()
        time.sleep(min(timeout_s, 0.005))
        return None


class Known:
    """Agents by path, some of them away."""

    def __init__(self, **agents):
        self.agents = {Path(name): agent for name, agent in agents.items()}
        self.away = set()

    def find(self, root):
        return [path for path in self.agents if path not in self.away]

    def connect(self, path):
        if path in self.away:
            raise ConnectionRefusedError
        return self.agents[path]


class BrokenAgent(MadeUpAgent):
    """Does not answer."""

    cause = Cause.MISSING

    def move(self, hashes, volume):
        raise StoreError(self.cause, "no answer")


def eventually(look):
    until = time.monotonic() + WAIT_S
    while not look():
        assert time.monotonic() < until
        time.sleep(0.005)


@pytest.fixture
def start():
    running = []

    def begin(agents, **changes):
        changes = {"volumes": FAST, "rates": NO_LIMITS, "tick_s": 0.01, "disk": DiskAt("/disk")} | changes
        heard = Heard()
        service = Service(AdvisorSettings(**changes), agents, heard)
        thread = threading.Thread(target=service.run)
        thread.start()
        running.append((service, thread))
        return service, heard

    yield begin
    for service, thread in running:
        service.stop()
        thread.join(WAIT_S)
        assert not thread.is_alive()


def speaking(rig, heard, keys):
    """The engine writes blocks, and tells of them."""
    rig.now_s = time.time()
    rig.agent.write(keys)
    heard.messages.append(rig.tell(rig.agent.take_facts()))


def test_blocks_are_moved_by_all_ranks_and_it_is_told(start, tmp_path):
    rig = Rig()
    twin = MadeUpAgent({"": 100}, extent_bytes=MIB)
    rig.agent = MadeUpAgent({"": 100}, extent_bytes=MIB)  # neither has the fast volume yet
    keys = chain(5)
    twin.write(keys)
    log = tmp_path / "orders.jsonl"
    service, heard = start(Known(rank0=rig.agent, rank1=twin), log_file=str(log))
    eventually(lambda: service.health()["n_agents"] == 2)
    speaking(rig, heard, keys)
    eventually(lambda: service.orders()["orders"] and not service.orders()["n_waiting"])
    assert rig.where(keys) == [twin.places[key.hash] for key in keys] == ["fast"] * 5
    (order,) = service.orders()["orders"]
    assert (order["rule"], order["volume"], order["n_moved"]) == ("promote", "fast", 5)
    assert json.loads(log.read_text()) == order
    heard.messages.append(rig.tell(rig.agent.take_facts()))
    eventually(lambda: service.index()["engines"][0]["volumes"] == {"": 0, "fast": 5})


def test_a_log_that_cannot_be_written_is_said_before_anything_begins(tmp_path):
    with pytest.raises(ConfigError, match=r"^log_file: can't write"):
        Service(AdvisorSettings(log_file=str(tmp_path / "nowhere" / "log")), NobodyThere(), Heard())


def test_a_dry_run_tells_once_and_moves_nothing(start):
    rig = Rig()
    service, heard = start(Known(rank0=rig.agent), dry_run=True)
    eventually(lambda: service.health()["n_agents"])
    keys = chain(5)
    speaking(rig, heard, keys)
    eventually(lambda: service.orders()["orders"])
    time.sleep(0.1)
    (order,) = service.orders()["orders"]
    assert (order["is_dry_run"], order["n_blocks"]) == (True, 5)
    assert rig.where(keys) == [""] * 5


def test_an_agent_that_fails_is_looked_for_again(our_log):
    agents = Known(rank0=BrokenAgent({"": 10, "fast": 5}))
    fleet = Fleet(agents, Path("/disk"), parse_volumes(FAST))
    fleet.refresh()
    rig = Rig()
    rig.request(chain(2))
    (task,) = rig.plan()
    said, moved = fleet.carry_out(NAME, task)
    assert (said, moved) == ({"error": "no answer"}, None)
    assert not fleet.workers()
    agents.away.add(Path("rank0"))
    fleet.refresh()
    assert not fleet.workers()
    agents.away.clear()
    fleet.refresh()
    assert list(fleet.workers()) == [NAME]
    assert [record.levelname for record in our_log() if "away" in record.message] == ["WARNING"]


def test_a_volume_that_an_engine_refuses_is_said_once(our_log):
    class Refusing(MadeUpAgent):
        def register_volume(self, name, url, capacity_bytes):
            raise ConfigError("no such folder")

    fleet = Fleet(Known(rank0=Refusing({"": 10})), Path("/disk"), parse_volumes(FAST))
    fleet.refresh()
    fleet.refresh()
    assert len([record for record in our_log() if "no such folder" in record.message]) == 1
    assert len(fleet.workers()) == 1


def test_a_volume_that_is_another_in_the_engine_is_said_once_and_shown(our_log):
    agent = MadeUpAgent({"": 10})
    agent.register_volume("fast", "file:///elsewhere", 5 * MIB)
    fleet = Fleet(Known(rank0=agent), Path("/disk"), parse_volumes(FAST))
    fleet.refresh()
    fleet.refresh()
    (said,) = [record.message for record in our_log() if record.levelname == "WARNING"]
    assert "volume fast is file:///elsewhere with" in said
    assert "unregister it first" in said
    (refused,) = fleet.refused()
    assert (refused["volume"], refused["agent"]) == ("fast", "rank0")


def test_an_agent_of_another_user_is_said_once(monkeypatch, our_log, tmp_path):
    path = tmp_path / "control"
    path.touch()
    monkeypatch.setattr("tenuto.advisor.agents.os.access", lambda *_: False)
    monkeypatch.setattr(Sockets, "find", lambda *_: [path])
    fleet = Fleet(Sockets(), tmp_path, ())
    fleet.refresh()
    fleet.refresh()
    (said,) = [record.message for record in our_log()]
    assert said.endswith("is of another user; run the advisor as the user who runs the engine")


def test_a_volume_that_was_refused_is_tried_again_after_a_minute():
    class Mounting(MadeUpAgent):
        is_mounted = False

        def register_volume(self, name, url, capacity_bytes):
            if not self.is_mounted:
                raise ConfigError("no such folder")
            super().register_volume(name, url, capacity_bytes)

    agent, now = Mounting({"": 10}), [0.0]
    fleet = Fleet(Known(rank0=agent), Path("/disk"), parse_volumes(FAST), clock=lambda: now[0])
    fleet.refresh()
    agent.is_mounted = True
    fleet.refresh()
    assert len(fleet.refused()) == 1
    now[0] = 60.0
    fleet.refresh()
    assert fleet.refused() == []
    assert [volume.name for volume in fleet.workers()[NAME][0].volumes] == ["", "fast"]


def test_a_dry_run_registers_nothing_and_plans_as_if(start, our_log):
    rig = Rig()
    rig.agent = MadeUpAgent({"": 100}, extent_bytes=MIB)
    service, heard = start(Known(rank0=rig.agent), dry_run=True)
    eventually(lambda: service.health()["n_agents"])
    speaking(rig, heard, chain(5))
    eventually(lambda: service.orders()["orders"])
    (order,) = service.orders()["orders"]
    assert (order["volume"], order["n_blocks"]) == ("fast", 5)
    assert [volume.name for volume in rig.agent.describe().volumes] == [""]
    said = [record.message for record in our_log() if "is not registered" in record.message]
    assert len(said) == 1
    assert said[0].endswith("would be, at file:///mnt/fast with 1073741824 bytes")


def test_an_agent_that_does_not_answer_in_time_is_left_alone_for_a_minute():
    agent, now = BrokenAgent({"": 10, "fast": 5}), [0.0]
    agent.cause = Cause.TIMEOUT
    agents = Known(rank0=agent)
    fleet = Fleet(agents, Path("/disk"), parse_volumes(FAST), clock=lambda: now[0])
    fleet.refresh()
    rig = Rig()
    rig.request(chain(2))
    (task,) = rig.plan()
    fleet.carry_out(NAME, task)
    now[0] = 59.0
    fleet.refresh()
    assert (fleet.workers(), fleet.names()) == ({}, {NAME})
    now[0] = 60.0
    fleet.refresh()
    assert list(fleet.workers()) == [NAME]


def test_a_large_order_is_asked_in_pieces():
    class Counting(MadeUpAgent):
        n_asked = 0

        def move(self, hashes, volume):
            self.n_asked += 1
            assert len(hashes) <= 256
            return super().move(hashes, volume)

    agent = Counting({"": 700, "fast": 600}, extent_bytes=MIB)
    keys = chain(650)
    agent.write(keys)
    fleet = Fleet(Known(rank0=agent), Path("/disk"), ())
    fleet.refresh()
    hashes = [key.hash for key in keys]
    said, moved = fleet.carry_out(NAME, Task("promote", Move("fast", np.arange(650)), hashes))
    assert (agent.n_asked, said["n_moved"], said["n_refused"]) == (3, 600, 50)
    assert moved is not None
    assert moved.refused == tuple(hashes[600:])


@pytest.mark.parametrize("error", [ValueError("odd"), RuntimeError("odd"), TypeError("odd")])
def test_whatever_an_agent_does_is_its_own_fault(start, our_log, error):
    class Odd(MadeUpAgent):
        def move(self, hashes, volume):
            raise error

    rig = Rig()
    rig.agent = Odd({"": 100, "fast": 10}, extent_bytes=MIB)
    service, heard = start(Known(rank0=rig.agent), tick_s=0.01)
    eventually(lambda: service.health()["n_agents"])
    speaking(rig, heard, chain(5))
    eventually(lambda: service.orders()["orders"])
    eventually(lambda: service.health()["n_agents"] == 1)
    assert service.orders()["orders"][0]["error"] == "odd"
    assert any(f"{type(error).__name__}: odd" in record.message for record in our_log())


def test_when_the_thread_beside_dies_the_process_ends(monkeypatch):
    service = Service(AdvisorSettings(tick_s=0.01), NobodyThere(), Heard())

    def die():
        raise MemoryError("none left")

    monkeypatch.setattr(service, "_refresh", die)
    with pytest.raises(InvariantError, match=r"drives agents has ended \(MemoryError: none left\)"):
        service.run()


def test_orders_under_way_are_shown(start):
    go_on = threading.Event()

    class Slow(MadeUpAgent):
        def move(self, hashes, volume):
            go_on.wait(WAIT_S)
            return super().move(hashes, volume)

    rig = Rig()
    rig.agent = Slow({"": 100, "fast": 10}, extent_bytes=MIB)
    service, heard = start(Known(rank0=rig.agent))
    eventually(lambda: service.health()["n_agents"])
    speaking(rig, heard, chain(5))
    eventually(lambda: service.health()["under_way"])
    (order,) = service.health()["under_way"]
    assert (order["order"], order["n_blocks"], order["age_s"] < WAIT_S) == ("move", 5, True)
    go_on.set()
    eventually(lambda: not service.health()["under_way"])


def test_a_wall_clock_that_is_set_changes_no_age():
    wall, own = [5e8], [1000.0]
    clock = OwnClock(lambda: wall[0], lambda: own[0])
    rig = Rig()
    rig.now_s = 5e8 - 30.0
    assert clock.translated(rig.tell([])).time_ms == 970_000
    wall[0] -= 3600.0
    assert clock.translated(rig.tell([])).time_ms == 1_000_000  # sent before: no later than now
    rig.now_s = wall[0]
    assert clock.translated(rig.tell([])).time_ms == 1_000_000
    wall[0] += 7200.0
    rig.now_s = wall[0] - 1.0
    assert clock.translated(rig.tell([])).time_ms == 999_000


def test_who_is_silent_is_told_once_and_forgotten_at_last(our_log):
    silence, place = Silence("zmq://here", 0.0), ("node", "worker", 0)
    silence.look([NAME], 0.0)
    silence.look([NAME], 29.0)
    assert our_log() == []
    for _ in range(2):
        silence.look([NAME], 30.0)
    assert [record.message[:45] for record in our_log()] == [
        "tenuto: nobody is heard at zmq://here; do eng",
        "tenuto: worker worker, rank 0, is driven and ",
    ]
    silence.heard(place, 40.0)
    assert silence.gone([], 340.0) == []
    assert silence.gone([NAME], 341.0) == []
    assert silence.gone([], 341.0) == [place]
    assert silence.gone([], 999.0) == []


def test_a_full_disk_costs_lines_alone_and_a_minute_is_a_line(our_log):
    our_log()
    journal = Journal("/dev/full", is_dry_run=False, now_s=0.0)
    task = Task("promote", Move("fast", np.arange(3)), [], is_up=True)
    journal.note({"n_moved": 2, "n_refused": 1}, task)
    journal.summarize(59.0)
    journal.summarize(60.0)
    journal.summarize(120.0)
    journal.close()
    said = [record.message for record in our_log()]
    assert said == ["tenuto: in the last minute: 2 moved up, 1 refused"]
    assert len(journal.orders) == 1


def test_what_ranks_disagree_on_is_the_least():
    few, many = MadeUpAgent({"": 10, "fast": 3}), MadeUpAgent({"": 20, "fast": 5, "mine": 7})
    keys = chain(3)
    few.write(keys)
    many.write(keys[:2])
    volumes = {volume.name: volume.n_places for volume in common_volumes([many.describe(), few.describe()])}
    assert volumes == {"": 10, "fast": 3}
    fleet = Fleet(Known(a=few, b=many), Path("/disk"), ())
    fleet.refresh()
    hashes = [key.hash for key in keys]
    rig = Rig()
    rig.request(keys)
    said, moved = fleet.carry_out(NAME, Task("promote", Move("fast", rig.index.table.all_rows()), hashes))
    assert moved is not None
    assert (said["n_moved"], moved.absent) == (2, tuple(hashes[2:]))


def test_without_events_or_agents_nothing_happens(start):
    service, _ = start(NobodyThere(), disk=DiskAt())
    eventually(lambda: service.health()["up_s"] >= 0.1)
    assert service.orders() == {"orders": [], "n_waiting": 0}
    assert service.index() == {"engines": []}


def test_reports_over_http(start):
    rig = Rig()
    service, heard = start(Known(rank0=rig.agent))
    server = ReportServer(service, "127.0.0.1", 0)
    at = f"http://127.0.0.1:{server.port}"

    def get(path):
        with urllib.request.urlopen(at + path, timeout=WAIT_S) as answer:
            return json.load(answer)

    try:
        eventually(lambda: get("/health")["n_agents"] == 1)
        speaking(rig, heard, chain(4, seed=1))
        speaking(rig, heard, chain(2, seed=2))
        eventually(lambda: get("/index")["engines"] and get("/index")["engines"][0]["n_blocks"] == 6)
        assert [volume["name"] for volume in get("/volumes")["engines"][0]["volumes"]] == ["fast", ""]
        eventually(lambda: get("/orders")["orders"])
        (hottest,) = get("/prefixes?top=1")["prefixes"]
        assert (hottest["prefix"], hottest["n_blocks"]) == (chain(4, seed=1)[0].hash.hex(), 4)
        for wrong, status in (
            ("/prefixes?top=0", 400),
            ("/prefixes?top=x", 400),
            ("/else", 404),
        ):
            with pytest.raises(urllib.error.HTTPError) as refused:
                get(wrong)
            assert refused.value.code == status
        for wrong in (b"GET /prefixes?top=0000000001" + b"9" * 20, b"GET http://[x/health", b"GET / x/y"):
            with socket.create_connection(("127.0.0.1", server.port), WAIT_S) as client:
                client.sendall(wrong + b" HTTP/1.1\r\n\r\n")
                head, _, body = client.makefile("rb").read().partition(b"\r\n\r\n")
            assert b" 400 " in head.splitlines()[0]
            assert set(json.loads(body)) == {"error"}
        with pytest.raises(ConfigError, match="can't listen"):
            ReportServer(service, "127.0.0.1", server.port)
    finally:
        server.close()
