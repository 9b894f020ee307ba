"""Settings: strict, and every mistake is one line that names the setting and the fix."""

import pytest

from tenuto.config import Config, load_config, parse_size
from tenuto.errors import ConfigError

pytestmark = pytest.mark.unit


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


@pytest.mark.parametrize("text", ["", "lots", "-1 GiB", "0", "0.4 B", 0, -5, True, "1 XB", "GiB", "9" * 400, 1 << 70])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(ConfigError, match=r"^some\.setting: .* is not a size; write it as"):
        parse_size(text, "some.setting")


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"teirs": {}}, "teirs: unknown setting; did you mean tiers?"),
        ({"tiers": {"disk": {"pth": "/x"}}}, "tiers.disk.pth: unknown setting; did you mean tiers.disk.path?"),
        ({"zzz": 1}, "zzz: unknown setting; known: layout, tiers, runtime"),
        ({"tiers": {"disk": "/x"}}, "tiers.disk: expected a group of settings, got '/x'"),
        ({"tiers": {"disk": {"io_threads": 0}}}, "tiers.disk.io_threads: 0 is out of range; give 1 to 256"),
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
    "settings",
    [
        {"tiers": {"disk": {"io_threads": "many"}}},
        {"runtime": {"cache_generated": "yes"}},
        {"layout": {"block_tokens": 1.5}},
    ],
)
def test_a_wrong_type_names_its_setting_in_one_line(settings):
    (group,) = settings
    with pytest.raises(ConfigError, match=rf"^{group}\..*: expected") as raised:
        load_config(settings)
    assert "\n" not in str(raised.value)
