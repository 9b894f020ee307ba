"""A pinned arena beside a real GPU: the driver and torch know it as pinned, and copies run as fast as torch's own."""

import pytest

torch = pytest.importorskip("torch")

from tenuto.memory.driver import CudaDriver  # noqa: E402
from tenuto.memory.pinning import Surroundings, pinned_arena  # noqa: E402

pytestmark = [
    pytest.mark.kernels,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"),
]

MIB = 1 << 20
EXTENT = 64 * MIB + 4096
N_SLOTS = 16


@pytest.fixture
def driver():
    torch.zeros(1, device="cuda")  # makes the context
    return CudaDriver()


@pytest.fixture
def arena(driver):
    arena = pinned_arena(N_SLOTS, EXTENT, driver, Surroundings(piece_bytes=256 * MIB))  # 3 slots a piece
    yield arena
    torch.cuda.synchronize()
    arena.close()


def tensor_of(view):
    return torch.frombuffer(view, dtype=torch.uint8)


def seconds(copy, n=10):
    stream = torch.cuda.Stream()
    copy(stream)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record(stream)
    for _ in range(n):
        copy(stream)
    end.record(stream)
    end.synchronize()
    return begin.elapsed_time(end) / 1000 / n


def test_the_gpu_has_an_address_that_sysfs_knows(driver):
    domain, bus, rest = driver.pci_address().split(":")
    assert (len(domain), len(bus), rest[2]) == (4, 2, ".")
    assert driver.pci_address() == driver.pci_address().lower()


def test_torch_sees_every_slot_as_pinned_until_it_is_closed(driver):
    arena = pinned_arena(4, EXTENT, driver, Surroundings(piece_bytes=2 * EXTENT))
    assert all(tensor_of(arena.slot(number)).is_pinned() for number in range(4))
    arena.close()
    assert not any(tensor_of(arena.slot(number)).is_pinned() for number in range(4))


def test_one_batch_of_copies_reaches_slots_of_all_pieces_and_keeps_every_byte(driver, arena):
    device = torch.randint(0, 256, (N_SLOTS, EXTENT), dtype=torch.uint8, device="cuda")
    back = torch.zeros_like(device)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    numbers = range(N_SLOTS)
    hosts = [arena.address(number) for number in numbers]
    driver.copy(hosts, [device[n].data_ptr() for n in numbers], [EXTENT] * N_SLOTS, stream.cuda_stream)
    stream.synchronize()
    assert all(torch.equal(tensor_of(arena.slot(n)), device[n].cpu()) for n in numbers)
    driver.copy([back[n].data_ptr() for n in numbers], hosts, [EXTENT] * N_SLOTS, stream.cuda_stream)
    stream.synchronize()
    assert torch.equal(back, device)


@pytest.mark.parametrize("direction", ["to host", "to device"])
def test_a_copy_of_a_slot_is_as_fast_as_one_of_torchs_pinned_memory(driver, arena, direction):
    device = torch.zeros(EXTENT, dtype=torch.uint8, device="cuda")
    pinned = torch.zeros(EXTENT, dtype=torch.uint8, pin_memory=True)
    torch.cuda.synchronize()

    def ours(stream):
        host, gpu = arena.address(5), device.data_ptr()
        pair = ([host], [gpu]) if direction == "to host" else ([gpu], [host])
        driver.copy(*pair, [EXTENT], stream.cuda_stream)

    def torchs(stream):
        with torch.cuda.stream(stream):
            target, source = (pinned, device) if direction == "to host" else (device, pinned)
            target.copy_(source, non_blocking=True)

    best = min(seconds(torchs) for _ in range(3))
    assert min(seconds(ours) for _ in range(3)) <= best / 0.95
