"""An agent that is driven from another process, by the socket in its folder."""

from __future__ import annotations

import socket
import stat
import threading
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from tenuto.cli.inspect.survey import survey
from tenuto.config import Disk
from tenuto.errors import Cause, ConfigError, StoreError
from tenuto.memory.extent import ExtentCodec
from tenuto.tiers.agent.address import short_address
from tenuto.tiers.agent.agent import Identity
from tenuto.tiers.agent.client import AgentClient, error_of, find_agents
from tenuto.tiers.agent.control import ControlServer
from tenuto.tiers.agent.messages import Refused
from tenuto.tiers.agent.tier import open_tier
from tests.tiers.agent.agent_rig import EXTENT, LAYOUT, MODEL, Engine, folder_at, room_for

pytestmark = pytest.mark.adapter


@pytest.fixture
def engine(tmp_path):
    made = Engine(tmp_path / "home", n_home=16)
    made.agent.served_by(ControlServer(made.agent))
    yield made
    made.agent.close()


@pytest.fixture
def client(engine):
    (path,) = find_agents(engine.root)
    with AgentClient(path) as made:
        yield made


def test_all_that_an_agent_does_can_be_asked_for(engine, client, tmp_path):
    client.register_volume("fast", folder_at(tmp_path / "fast"), room_for(10))
    engine.fill(range(4), 10)
    moved = client.move([engine.hash(10), engine.hash(11), engine.hash(40)], "fast")
    assert (moved.n_moved, moved.absent) == (2, (engine.hash(40),))
    info = client.describe()
    assert (info.namespace, info.worker, info.rank, info.extent_bytes) == (MODEL.digest, "engine", 0, EXTENT)
    assert [(volume.name, volume.n_blocks) for volume in info.volumes] == [("", 2), ("fast", 2)]
    extent = client.get(engine.hash(10))
    client.put(extent)
    assert client.drop([engine.hash(12)]) == 1
    engine.held.pop(2)
    assert client.compact("").n_moved <= 1
    assert client.unregister_volume("fast").n_moved == 2
    engine.check()


def test_what_an_agent_refuses_is_raised_as_it_was_there(client):
    with pytest.raises(ConfigError, match="there is no volume 'fast'"):
        client.move([], "fast")
    with pytest.raises(StoreError, match="no volume has block") as error:
        client.get(bytes(16))
    assert error.value.cause is Cause.MISSING
    assert client.describe().volumes  # and it goes on


def test_the_socket_is_its_users_alone_and_goes_with_the_agent(engine, client):
    (path,) = find_agents(engine.root)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    engine.agent.close()
    assert find_agents(engine.root) == []
    with pytest.raises(StoreError, match="is gone"):
        client.describe()
    engine.agent = Engine(engine.root, **engine.options).agent  # closed by the fixture


def test_the_socket_of_a_killed_engine_is_nobodys_until_it_is_started_again(engine, tmp_path):
    path = engine.agent.claim.folder / "control"
    path.unlink()
    dead = socket.socket(socket.AF_UNIX)
    with short_address(path) as address:
        dead.bind(address)
    dead.close()
    assert find_agents(engine.root) == [path]
    with pytest.raises(StoreError, match="no agent answers"):
        AgentClient(path)
    server = ControlServer(engine.agent)
    with AgentClient(path) as client:
        assert client.describe().instance == "a"
    server.close()


def test_what_is_no_request_is_answered_so(client):
    connection: Connection = client._connection
    connection.send_bytes(b"\xc1nonsense")
    assert b"not a request" in connection.recv_bytes()
    assert client.describe().rank == 0


def test_folders_deeper_than_a_sockets_address_are_served(tmp_path):
    deep = tmp_path / ("d" * 100) / ("e" * 100)
    codec = ExtentCodec(LAYOUT, MODEL.digest)
    tier = open_tier(Disk(path=str(deep), capacity=room_for(8)), codec, "engine", Identity(MODEL, "w", 3, 0))
    (path,) = find_agents(deep)
    with AgentClient(path) as client:
        assert (client.describe().worker, client.describe().dp_rank) == ("w", 3)
    tier.close()


def test_a_folder_without_sockets_is_said_once_and_serves_on(engine, monkeypatch, our_log):
    def refuse(*_):
        raise PermissionError(1, "not here")

    monkeypatch.setattr("tenuto.tiers.agent.control._Server", refuse)
    server = ControlServer(engine.agent)
    assert [record.getMessage() for record in our_log() if "an advisor can't drive" in record.getMessage()]
    server.close()
    engine.fill(range(2), 10)
    engine.check()


def test_inspect_takes_nothing_of_an_agent_for_somebody_elses(engine, client, tmp_path):
    client.register_volume("fast", folder_at(tmp_path / "fast"), room_for(10))
    engine.fill(range(2), 10)
    client.move([engine.hash(10)], "fast")
    for root in (engine.root, tmp_path / "fast"):
        seen = survey(Path(root), None)
        assert [stray for stray in seen.strays if "pool file" not in stray.why] == []  # it may be growing
        assert [rank.n_blocks for rank in seen.ranks] == [1]


def test_an_agent_that_does_not_answer_in_time_is_said_to_be_late(engine, monkeypatch):
    (path,) = find_agents(engine.root)
    held = threading.Event()
    monkeypatch.setattr(engine.agent, "describe", held.wait)
    with AgentClient(path, timeout_s=0.05) as hasty, pytest.raises(StoreError, match=r"did not answer in 0\.05 s"):
        hasty.describe()
    held.set()


def test_a_cause_of_a_later_version_is_an_error_of_io():
    assert error_of(Refused("made up", "of_tomorrow")).cause is Cause.IO_ERROR
    assert isinstance(error_of(Refused("made up")), ConfigError)
