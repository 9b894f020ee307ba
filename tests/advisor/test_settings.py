"""Settings of the advisor: one line for each that is wrong."""

import pytest

from tenuto.advisor.settings import (
    AdvisorSettings,
    DiskAt,
    VolumeSetting,
    check_disk,
    load_advisor_settings,
    parse_http,
    parse_volumes,
)
from tenuto.errors import ConfigError

pytestmark = pytest.mark.unit


def test_a_file_and_options_over_it(tmp_path):
    path = tmp_path / "advisor.toml"
    path.write_text(
        'volumes = ["fast=/mnt/fast?capacity=100GiB"]\ndry_run = true\n'
        '[events]\nurl = "zmq://127.0.0.1:5557"\n[disk]\npath = "/mnt/kv"\n'
        "[rates]\nblocks_per_s = 10\n[prune]\nmost_age_s = 3600\n"
    )
    settings = load_advisor_settings(path, {"events.url": "zmq://127.0.0.1:6000", "rules": ["promote"]})
    assert settings.events.url == "zmq://127.0.0.1:6000"
    assert settings.rules == ("promote",)
    assert settings.dry_run
    assert (settings.rates.blocks_per_s, settings.prune.most_age_s) == (10.0, 3600.0)
    assert load_advisor_settings() == AdvisorSettings()


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("[event]\nurl = 'x'", "advisor.toml:1: event: unknown setting; did you mean events?"),
        ("blocks_per_s = 3", "advisor.toml:1: blocks_per_s: unknown setting; did you mean rates.blocks_per_s?"),
        ("volumes = 'fast'", "advisor.toml:1: volumes: expected a list of texts, got 'fast'"),
        ("tick_s = 0", "advisor.toml:1: tick_s: 0.0 is out of range; give 0.01 to 3600"),
        ("rules = ['promot']", "rules: no rule is named 'promot'; give one of demote, promote, prune, compact, or"),
        ("rules = ['demote', 'demote']", "rules: one is named twice; name each once"),
        ("volumes = ['/mnt/fast']", "volumes: '/mnt/fast' is no volume; write it as fast=/mnt/fast?capacity=100GiB"),
        ("volumes = ['fast=/mnt/fast']", "volumes: 'fast=/mnt/fast' is no volume; write it as"),
        ("volumes = ['fast=mnt?capacity=1GiB']", "volumes: fast: 'mnt' is no absolute path and no URL"),
        ("volumes = ['a=/a?capacity=1GiB', 'a=/b?capacity=1GiB']", "volumes: two have one name; give each its own"),
        ("volumes = ['home=/a?capacity=1GiB']", "volumes: home is the engines' own"),
        ("volumes = ['a=/a?capacity=much']", "volumes: 'much' is not a size"),
        ("[rates]\nbytes_per_s = 'fast'", "advisor.toml:2: rates.bytes_per_s: 'fast' is not a size"),
        ("volumes = ['a=/a?capacity=1GiB']", "volumes: of nobody; give disk.path too, the engines' tiers.disk.path"),
        ("http = 'here'", "http: 'here' is no address; give HOST:PORT, as 127.0.0.1:8780"),
        ("http = '0.0.0.0:80'", "http: 0.0.0.0 can be reached by others; give 127.0.0.1, or http_anywhere = true"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(tmp_path, monkeypatch, text, line):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "advisor.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as wrong:
        load_advisor_settings(path.relative_to(tmp_path))
    assert str(wrong.value).startswith(line)
    assert "\n" not in str(wrong.value)


def test_volumes_are_in_the_order_of_their_speed():
    texts = ("fast=/mnt/f?capacity=1GiB", "home", "cold=s3://bucket/kv?capacity=2TiB")
    fast, home, cold = parse_volumes(texts)
    assert fast == VolumeSetting("fast", "file:///mnt/f", 1 << 30)
    assert home == VolumeSetting("")
    assert cold == VolumeSetting("cold", "s3://bucket/kv", 2 << 40)
    assert parse_volumes(texts[:1])[-1] == VolumeSetting("")


def test_a_disk_that_is_not_there_is_said(tmp_path):
    check_disk(DiskAt())
    check_disk(DiskAt(str(tmp_path)))
    with pytest.raises(ConfigError, match=r"^disk\.path: no folder .*nowhere is there"):
        check_disk(DiskAt(str(tmp_path / "nowhere")))


def test_others_reach_it_only_when_that_is_said():
    assert parse_http("127.0.0.1:0") == ("127.0.0.1", 0)
    assert parse_http("0.0.0.0:80", may_be_anywhere=True) == ("0.0.0.0", 80)
