"""Settings: strict, and every mistake is one line that names the setting and the fix."""

import pytest

from tenuto.config import Config, Folders, in_units, leaves, load_config, parse_size
from tenuto.errors import ConfigError
from tenuto.settings import nest

pytestmark = pytest.mark.unit

RUNTIMES = '"file" or "striped" or "nixl+posix" or "nixl+gds" or "nixl+gds_mt" or "cufile"'


def test_nothing_is_the_defaults():
    assert load_config({}) == Config()


def test_settings_land_where_they_are_named():
    config = load_config({"tiers": {"disk": {"path": "/x", "io_threads": 3}}, "layout": {"block_tokens": 64}})
    assert (config.tiers.disk.path, config.tiers.disk.io_threads, config.layout.block_tokens) == ("/x", 3, 64)


@pytest.mark.parametrize(
    ("text", "size"),
    [("4 GiB", 4 << 30), ("512MiB", 512 << 20), ("1.5 KiB", 1536), ("2 GB", 2_000_000_000), ("8G", 8 << 30), (77, 77)],
)
def test_sizes(text, size):
    assert parse_size(text, "s") == size


@pytest.mark.parametrize(
    ("size", "text"),
    [(1, "1 B"), (20480, "20 KiB"), (1 << 20, "1 MiB"), (1064 << 10, "1064 KiB"), (1 << 40, "1048576 MiB")],
)
def test_sizes_are_shown_so_that_they_are_read_back_the_same(size, text):
    assert in_units(size) == text
    assert parse_size(text, "s") == size


@pytest.mark.parametrize("text", ["", "lots", "-1 GiB", "0", "0.4 B", 0, -5, True, "1 XB", "GiB", "9" * 400, 1 << 70])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(ConfigError, match=r"^some\.setting: .* is not a size; write it as"):
        parse_size(text, "some.setting")


NOT_OF_THE_ENGINE = (
    'the schema "vllm" tells nothing of the engine; give events.router_schema "dynamo", or leave this out'
)


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"teirs": {}}, "teirs: unknown setting; did you mean tiers?"),
        ({"tiers": {"disk": {"pth": "/x"}}}, "tiers.disk.pth: unknown setting; did you mean tiers.disk.path?"),
        ({"zzz": 1}, "zzz: unknown setting; known: model, layout, tiers, runtime, events"),
        ({"disk": {"path": "/x"}}, "disk: unknown setting; did you mean tiers.disk?"),
        ({"retry_s": 1}, "retry_s: unknown setting; did you mean runtime.retry_s?"),
        (
            {"model": {"weights": ""}},
            "model.weights: '' is no name; give \"auto\", or printable text that neither starts nor ends with a space",
        ),
        ({"tiers": {"disk": {"path": "a\0b"}}}, "tiers.disk.path: has a zero byte in it; give the path of a folder"),
        (
            {"tiers": {"disk": {"capacity": "all"}}},
            'tiers.disk.capacity: \'all\' is not a size; write it as "4 GiB", "512 MiB" or bytes, or "auto"',
        ),
        ({"tiers": {"disk": {"runtime": "gds"}}}, f"tiers.disk.runtime: expected {RUNTIMES}, got 'gds'"),
        ({"tiers": {"disk": {"stripes": "/x"}}}, "tiers.disk.stripes: expected a list of folders, got '/x'"),
        ({"tiers": {"disk": {"stripes": [""]}}}, "tiers.disk.stripes: one of them is empty; give the path of a folder"),
        (
            {"tiers": {"disk": {"path": "/x", "runtime": "striped"}}},
            "tiers.disk.stripes: no folders to stripe over beside tiers.disk.path; give at least one",
        ),
        (
            {"tiers": {"disk": {"path": "/x", "stripes": ["/y"]}}},
            'tiers.disk.runtime: "file" stripes nothing; give "striped", or no stripes',
        ),
        (
            {"tiers": {"disk": {"stripes": ["/y"], "capacity": "auto"}}},
            "tiers.disk.stripes: there is no disk tier without tiers.disk.path; give that folder, or leave this out",
        ),
        (
            {"tiers": {"disk": {"poll_s": 1, "store": "a:B"}}},
            "\n".join(
                f"tiers.disk.{name}: there is no disk tier without tiers.disk.path; give that folder, or leave this out"
                for name in ("store", "poll_s")
            ),
        ),
        (
            {"events": {"router_schema": "vllm", "engine_url": "zmq://h:1"}},
            "\n".join(
                f"events.{name}: routers are told nothing without events.router_url; give that, or leave this out"
                for name in ("router_schema", "engine_url")
            ),
        ),
        (
            {"events": {"router_url": "zmq://*:1", "router_schema": "vllm", "engine_url": "zmq://h:1"}},
            f"events.engine_url: {NOT_OF_THE_ENGINE}",
        ),
        ({"tiers": {"disk": "/x"}}, "tiers.disk: expected a group of settings, got '/x'"),
        ({"tiers": {"disk": {"io_threads": 257}}}, "tiers.disk.io_threads: 257 is out of range; give 0 to 256"),
        (
            {"runtime": {"metrics_port": 65536}},
            "runtime.metrics_port: 65536 is out of range; give 0 to 65535",
        ),
        (
            {"runtime": {"load_timeout_s": float("nan")}},
            "runtime.load_timeout_s: nan is out of range; give 0.001 to 86400",
        ),
    ],
)
def test_mistakes_are_named(settings, line):
    with pytest.raises(ConfigError) as raised:
        load_config(settings)
    assert str(raised.value) == line


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"tiers": {"disk": {"io_threads": "many"}}}, "tiers.disk.io_threads: expected a whole number, got 'many'"),
        ({"runtime": {"cache_generated": "yes"}}, "runtime.cache_generated: expected true or false, got 'yes'"),
        ({"layout": {"block_tokens": 1.5}}, "layout.block_tokens: expected a whole number, got 1.5"),
        ({"runtime": {"retry_s": True}}, "runtime.retry_s: expected a number, got True"),
        ({"model": {"weights": 7}}, "model.weights: expected text, got 7"),
    ],
)
def test_a_wrong_type_names_its_setting_in_one_line(settings, line):
    with pytest.raises(ConfigError) as raised:
        load_config(settings)
    assert str(raised.value) == line


@pytest.mark.parametrize("leaf", list(leaves()), ids=lambda leaf: leaf.name)
def test_every_setting_refuses_a_list_in_one_line_of_its_own(leaf):
    with pytest.raises(ConfigError, match=rf"^{leaf.name}: .*\[\]") as raised:
        load_config(nest({leaf.name: [[]] if leaf.type == Folders else []}))
    assert "\n" not in str(raised.value)


def test_all_mistakes_are_listed_at_once():
    with pytest.raises(ConfigError) as raised:
        load_config({
            "tires": {}, "tiers": {"disk": {"io_threads": 257}, "host": {"capacity": "auto"}}, "model": {}
        })  # fmt: skip
    assert str(raised.value).splitlines() == [
        "tires: unknown setting; did you mean tiers?",
        "tiers.disk.io_threads: 257 is out of range; give 0 to 256",
        'tiers.host.capacity: \'auto\' is not a size; write it as "4 GiB", "512 MiB" or bytes',
    ]


def test_there_are_few_settings_and_their_defaults_are_valid():
    names = [leaf.name for leaf in leaves()]
    assert 0 < len(names) == len(set(names)) <= 40
    for leaf in leaves():
        assert load_config(nest({leaf.name: leaf.default})) == Config()
