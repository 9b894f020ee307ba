"""What both halves derive from settings and geometry."""

import re
from dataclasses import replace

import msgspec
import pytest

from tenuto.config import load_config
from tenuto.connectors.session.setup import N_BOUNCE, Setup
from tenuto.connectors.session.worker import open_disk
from tenuto.errors import ConfigError
from tenuto.memory.extent import ExtentCodec
from tests.session.session_rig import BLOCK, LAYOUT, NAMESPACE, PAGE

pytestmark = pytest.mark.unit

SIZE = LAYOUT.extent_bytes


def setup_of(host: int | str, disk: str = "", window: int | str = "512 MiB") -> Setup:
    config = load_config({
        "tiers": {"host": {"capacity": host}, "disk": {"path": disk}}, "runtime": {"write_window": window}
    })  # fmt: skip
    return Setup(config, NAMESPACE, LAYOUT, PAGE, "engine")


def test_host_slots_are_what_fits():
    assert setup_of(10 * SIZE).n_host_slots == 10
    assert setup_of(11 * SIZE - 1).n_host_slots == 10


def test_a_disk_takes_some_host_slots_to_bounce_through():
    assert setup_of(10 * SIZE, "/x").n_host_slots == 10 - N_BOUNCE
    assert setup_of(10 * SIZE, "/x").has_disk
    assert not setup_of(10 * SIZE).has_disk


@pytest.mark.parametrize(("host", "disk"), [(SIZE - 1, ""), (N_BOUNCE * SIZE, "/x")])
def test_room_for_no_block_is_refused_in_one_line(host, disk):
    with pytest.raises(
        ConfigError, match=r"^tiers\.host\.capacity: .* no room for one block of .*; give at least"
    ) as raised:
        _ = setup_of(host, disk).n_host_slots
    assert "\n" not in str(raised.value)
    assert ("(with a disk: 5 blocks)" in str(raised.value)) == bool(disk)
    assert str(raised.value).endswith(", or a smaller layout.block_tokens")
    least = re.search(r"give at least (\d+ [KM]iB)", str(raised.value))[1]
    assert setup_of(least, disk).n_host_slots == 1


@pytest.mark.parametrize(
    ("n_host", "window", "n_writes"), [(64, 8 * SIZE, 8), (64, 1000 * SIZE, 30), (6, 8 * SIZE, 1), (64, 1, 1)]
)
def test_the_write_window_is_at_most_half_of_host_memory_and_at_least_one(n_host, window, n_writes):
    assert setup_of(n_host * SIZE, "/x", window).max_writes == n_writes


def test_a_folder_in_nobodys_home_is_refused_in_one_line():
    setup = setup_of(10 * SIZE, "~nobody-here/x")
    with pytest.raises(ConfigError, match=r"^tiers\.disk\.path: '~nobody-here/x': no home .*; give the whole path$"):
        open_disk(setup, 0, ExtentCodec(LAYOUT, NAMESPACE.digest))


def test_pages_per_block():
    assert setup_of(10 * SIZE).pages_per_block == BLOCK // PAGE
    assert replace(setup_of(10 * SIZE), page_tokens=BLOCK).pages_per_block == 1


def test_host_memory_that_the_longest_prompt_does_not_fit_into_is_told_with_what_would_do():
    held = replace(setup_of(10 * SIZE, "/x"), max_model_len=6 * BLOCK)
    assert held.shortage == ""
    short = replace(held, max_model_len=6 * BLOCK + 1)
    assert short.shortage.startswith(f"host memory holds {6 * BLOCK} tokens, and a prompt of max_model_len")
    enough = short.shortage.split("tiers.host.capacity to ")[1].removesuffix(" or more")
    assert replace(setup_of(enough, "/x"), max_model_len=6 * BLOCK + 1).shortage == ""


@pytest.mark.parametrize(("onboard", "disk", "is_async", "is_said"), [
    ("auto", "/x", True, True), ("layered", "/x", True, True), ("async", "/x", True, False), ("auto", "", True, False),
    ("auto", "/x", False, False),
])  # fmt: skip
def test_that_layers_can_not_come_from_disk_is_said(onboard, disk, is_async, is_said):
    setup = replace(setup_of("64 MiB", disk), is_async_scheduled=is_async)
    runtime = msgspec.structs.replace(setup.config.runtime, onboard=onboard)
    setup = replace(setup, config=msgspec.structs.replace(setup.config, runtime=runtime))
    assert ("--no-async-scheduling" in setup.held_back) == is_said == bool(setup.held_back)
