"""The process around the core: agents that come and go, orders on a thread beside, reports."""

import json
import threading
import time
import urllib.error
import urllib.request
from collections import deque
from pathlib import Path

import pytest

from tenuto.advisor import AdvisorSettings, Move
from tenuto.advisor.core import Task
from tenuto.advisor.fleet import Fleet, common_volumes
from tenuto.advisor.http import ReportServer
from tenuto.advisor.service import Service
from tenuto.advisor.settings import DiskAt, parse_volumes
from tenuto.errors import Cause, ConfigError, StoreError
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

    def move(self, hashes, volume):
        raise StoreError(Cause.TIMEOUT, "no answer")


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
        for wrong, status in (("/prefixes?top=0", 400), ("/prefixes?top=x", 400), ("/else", 404)):
            with pytest.raises(urllib.error.HTTPError) as refused:
                get(wrong)
            assert refused.value.code == status
        with pytest.raises(ConfigError, match="can't listen"):
            ReportServer(service, "127.0.0.1", server.port)
    finally:
        server.close()
