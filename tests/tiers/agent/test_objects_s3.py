"""Volumes in an object store: a real server that speaks S3, and one that does not answer."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tenuto.errors import Cause, ConfigError
from tenuto.testing.store_contract import StoreContract
from tenuto.tiers.agent import bucket
from tenuto.tiers.agent.bucket import open_raw
from tenuto.tiers.agent.objects import ObjectStore
from tests.tiers.agent.agent_rig import EXTENT, LAYOUT, Engine
from tests.tiers.agent.s3_server import BUCKET, S3Server
from tests.tiers.disk_fixtures import wait_until


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    made = S3Server(tmp_path_factory.mktemp("s3") / "log")
    yield made
    made.kill()


@pytest.fixture
def s3(server, monkeypatch):
    for name, value in server.env.items():
        monkeypatch.setenv(name, value)
    for name, value in {"_CONNECT_S": 0.5, "_READ_S": 0.5, "_REQUEST_S": 1, "_RETRY_S": 0.5, "_AWAY_S": 1.0}.items():
        monkeypatch.setattr(bucket, name, value)
    return server


def names(url: str) -> list[str]:
    return [found["path"] for page in open_raw(url).list() for found in page]


@pytest.mark.contract
class TestObjectsInS3(StoreContract):
    layout = LAYOUT

    @pytest.fixture(autouse=True)
    def _server(self, s3):
        pass

    def make_store(self, folder: Path, codec):
        raw = open_raw(f"s3://{BUCKET}/{folder.name}")
        return ObjectStore(raw, "m/owner/rank-0", folder / "listing", codec, 16 * codec.layout.extent_bytes)


@pytest.fixture
def engine(tmp_path, s3):
    made = Engine(tmp_path / "home", n_home=16)
    made.url = f"s3://{BUCKET}/{tmp_path.name}"
    made.agent.register_volume("far", made.url, 12 * EXTENT)
    yield made
    s3.go_on()
    made.agent.close()


@pytest.mark.adapter
def test_blocks_are_moved_into_a_bucket_and_back(engine):
    engine.fill(range(6), 10)
    moved = [engine.hash(number) for number in (11, 13, 14, 15)]
    assert engine.agent.move(moved, "far").n_moved == 4
    assert engine.volumes() == {"": 2, "far": 4}
    engine.check()
    assert len(names(engine.url)) == 4
    engine.restart()
    assert engine.volumes() == {"": 2, "far": 4}
    engine.check()
    assert engine.agent.move(moved[:2], "").n_moved == 2
    engine.check()
    wait_until(lambda: len(names(engine.url)) == 2)
    assert engine.agent.unregister_volume("far").n_moved == 2
    assert names(engine.url) == []
    engine.check()


@pytest.mark.adapter
def test_a_bucket_that_does_not_answer_is_misses_within_seconds_and_one_line(engine, s3, our_log):
    engine.fill(range(8), 10)
    engine.agent.move([engine.hash(number) for number in range(10, 14)], "far")
    far = [slot for slot in engine.held if engine.agent._books.where([slot])[0].volume == "far"]
    near = [slot for slot in engine.held if slot not in far]
    s3.hold()
    began = time.monotonic()
    assert set(engine.read(*far)) <= {Cause.IO_ERROR, Cause.TIMEOUT}
    assert time.monotonic() - began < 5
    began = time.monotonic()
    assert engine.read(*far) == [Cause.TIMEOUT] * 4  # not asked again for a while
    assert engine.read(*near) == [None] * 4
    assert engine.agent.move([engine.hash(14)], "far").refused == (engine.hash(14),)
    engine.forget(far.pop())  # its object goes later
    assert engine.write({near[0]: 40}) == []
    assert time.monotonic() - began < 0.9
    (line,) = [record.getMessage() for record in our_log() if "object store" in record.getMessage()]
    assert "does not read" in line
    assert "\n" not in line
    s3.go_on()
    wait_until(lambda: engine.read(*far) == [None] * 3)
    engine.check()
    assert "answers again" in our_log()[-1].getMessage()


@pytest.mark.adapter
def test_a_bucket_that_is_gone_can_be_given_up(engine, s3, our_log):
    engine.fill(range(4), 10)
    engine.agent.move([engine.hash(10)], "far")
    s3.kill()
    try:
        assert engine.agent.unregister_volume("far").refused == (engine.hash(10),)
        assert engine.agent.take_news().lost == [engine.hash(10)]
        assert engine.volumes() == {"": 3}
        assert any("objects are left in its store" in record.getMessage() for record in our_log())
    finally:
        s3.start()


@pytest.mark.unit
def test_what_is_no_bucket_is_one_line(s3):
    for url in ("s3://", "gs://", "az://x"):
        with pytest.raises(ConfigError) as error:
            open_raw(url)
        assert "\n" not in str(error.value)
