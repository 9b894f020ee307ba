"""`tenuto bench events` at a tiny size: that all arrives, never how fast."""

import json

import pytest

from tenuto.cli.main import main

pytestmark = pytest.mark.adapter


def test_every_event_arrives_over_every_way_in_order(capsys, tmp_path):
    assert main(["bench", "events", "--quick", "--json", "--dir", str(tmp_path)]) == 0
    result = json.loads(capsys.readouterr().out)
    figures = result["figures"]
    assert (figures["lost"], figures["is_in_order"]) == (0, 1)
    assert figures["bytes_per_event"] < 120
    assert {"zmq_per_s", "nats_per_s", "jetstream_per_s", "publish_us"} <= set(figures)
    assert {"pyzmq", "nats-py"} <= set(result["versions"])
    assert not list(tmp_path.iterdir())


def test_without_a_broker_the_package_is_named(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr("tenuto.testing.nats_broker.shutil.which", lambda *_, **__: None)
    assert main(["bench", "events", "--quick", "--dir", str(tmp_path)]) != 0
    assert "apt-get install nats-server" in capsys.readouterr().err
