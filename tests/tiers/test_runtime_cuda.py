"""GPU memory straight to and from files, where a GPU and cuFile are: its compatibility mode at least."""

from contextlib import closing

import pytest

from tenuto.errors import ConfigError
from tenuto.tiers.disk.runtime import Done, IoRequest, Memory, Op, Short, open_runtime

pytestmark = pytest.mark.kernels

CHUNK = 64 << 10


@pytest.mark.parametrize("scheme", ["cufile", "nixl+gds", "nixl+gds_mt"])
def test_a_gpus_memory_is_written_and_read_bit_for_bit(tmp_path, scheme):
    torch = pytest.importorskip("torch")
    device = torch.device("cuda")
    source = torch.randint(0, 255, (16 * CHUNK,), dtype=torch.uint8, device=device)
    target = torch.zeros_like(source)
    torch.cuda.synchronize()
    try:
        runtime = open_runtime(f"{scheme}://{tmp_path}")
    except ConfigError as error:
        pytest.skip(str(error))
    with closing(runtime):  # the library is the process's: what a failure left registered would be the next test's
        moves(runtime, source, target)
    torch.cuda.synchronize()
    assert torch.equal(target[: 12 * CHUNK], source[: 12 * CHUNK])
    assert torch.equal(target[12 * CHUNK : 13 * CHUNK], source[11 * CHUNK : 12 * CHUNK])


def moves(runtime, source, target):
    """Twelve chunks out of one tensor and into the other, and a thirteenth where the file ends."""
    runtime.reserve("file", 12 * CHUNK)
    (file,) = runtime.open_batch(["file"])
    regions = [runtime.register_memory(Memory(t.data_ptr(), 16 * CHUNK, device=0)) for t in (source, target)]
    places = [(chunk * CHUNK, CHUNK) for chunk in range(12)]
    writes = [IoRequest(Op.WRITE, file, at, regions[0], at, n) for at, n in places]
    assert set(runtime.wait(runtime.submit(writes), 60)) == {Done(CHUNK)}
    reads = [IoRequest(Op.READ, file, at, regions[1], at, n) for at, n in places]
    reads.append(IoRequest(Op.READ, file, 11 * CHUNK, regions[1], 12 * CHUNK, 4 * CHUNK))
    states = runtime.wait(runtime.submit(reads), 60)
    assert states == (*[Done(CHUNK)] * 12, Short(CHUNK))
    for region in regions:
        runtime.unregister_memory(region)
