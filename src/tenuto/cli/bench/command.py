"""`tenuto bench NAME`: measure, show, keep."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from tenuto.cli.bench.engines.options import EngineOptions, add_engine_options, as_arguments, read_engine_options
from tenuto.cli.bench.measured import Measured
from tenuto.cli.bench.pooloptions import PoolOptions, add_pool_options, read_pool_options
from tenuto.cli.bench.progress import Bar
from tenuto.cli.bench.result import Result, check_out, describe_machine, describe_versions, today
from tenuto.cli.bench.show import LEFT_OUT, plain_text, show
from tenuto.cli.folders import chosen_folder
from tenuto.errors import ConfigError

EXIT_USAGE = 2


@dataclass(frozen=True, slots=True)
class Options:
    """What a bench may need to know. `folder`: where it may write; `is_quick`: does it run, not how fast."""

    folder: Path
    is_quick: bool = False
    engines: EngineOptions = field(default_factory=EngineOptions)
    pool: PoolOptions = field(default_factory=PoolOptions)
    trace: Path | None = None


def run_hash(options: Options, bar: Bar) -> Measured:
    """Prompts into block hashes."""
    from tenuto.cli.bench.hashing import HashSizes, measure_hash

    return Measured(measure_hash(HashSizes(1 << 12, 3) if options.is_quick else HashSizes(), bar))


def run_pool(options: Options, bar: Bar) -> Measured:
    """Leases, matches, evictions and memory of a pool of a million blocks, or of --blocks, with any --policy."""
    from tenuto.cli.bench.pooling import PoolSizes, measure_pool

    quick = PoolSizes(n_blocks=1 << 15, n_alive=2, n_evicting=2, n_matches=3)
    sizes = (quick if options.is_quick else PoolSizes()).chosen(options.pool)
    figures, details = measure_pool(sizes, bar), {"policy": sizes.policy}
    if "match_8192_ms" not in figures:
        details[LEFT_OUT] = "no time of a match: with this policy the full pool has no prompt of 8192 blocks whole"
    return Measured(figures, details=details)


def run_disk(options: Options, bar: Bar) -> Measured:
    """The disk tier against fio (Debian's package fio)."""
    from tenuto.cli.bench.disk import DiskSizes, measure_disk
    from tenuto.cli.bench.fio import find_fio, fio_version
    from tenuto.cli.bench.striping import StripingSizes, measure_striping
    from tenuto.tiers.disk.instance import file_system

    versions = {"fio": fio_version(find_fio())}
    quick = DiskSizes(n_units=64, n_rounds=1, n_uring_rounds=1, batch=16)
    figures = measure_disk(options.folder, quick if options.is_quick else DiskSizes(), bar)
    few = StripingSizes(n_units=8, n_memory_units=4, n_rounds=1)
    figures |= measure_striping(options.folder, few if options.is_quick else StripingSizes(), bar)
    return Measured(figures, file_system(options.folder), versions)


def run_scheduler(options: Options, bar: Bar) -> Measured:
    """The connector's time on vLLM's scheduler thread (needs vLLM for the CPU)."""
    _need("vllm")
    from tenuto.cli.bench.scheduler import SchedulerSizes, measure_scheduler

    quick = SchedulerSizes(n_running=8, n_prompt=64, n_steps=8, n_long=256, n_rounds=2)
    figures = measure_scheduler(quick if options.is_quick else SchedulerSizes(), bar)
    import vllm

    return Measured(figures, versions={"vllm": vllm.__version__})


def run_device(options: Options, bar: Bar) -> Measured:
    """Device to host and back, in every KV format, and what it costs beside it (needs a GPU)."""
    _need("torch")
    import torch

    from tenuto.cli.bench.device import DeviceSizes, measure_device

    figures = measure_device(DeviceSizes(64 << 20, 2) if options.is_quick else DeviceSizes(), bar)
    return Measured(figures, versions={"torch": torch.__version__}, gpu=torch.cuda.get_device_name())


def run_layered(options: Options, bar: Bar) -> Measured:
    """Loads and stores layer by layer under computing; on a GPU with the real disk, else with a slowed store."""
    _need("torch")
    import torch

    from tenuto.cli.bench.layered import choose_sizes, measure_layered

    is_gpu = torch.cuda.is_available()
    sizes = choose_sizes(is_gpu=is_gpu, is_quick=options.is_quick)
    return measure_layered(options.folder, sizes, bar, is_gpu=is_gpu)


def run_ttft(options: Options, _: Bar) -> Measured:
    """Time to first token in real engines: computed, and from each tier (needs vLLM)."""
    _need_engine("ttft", options)
    from tenuto.cli.bench.ttft import choose_sizes, measure_ttft
    from tenuto.cli.bench.workfolder import work_folder

    sizes = choose_sizes(options.engines, is_quick=options.is_quick)
    with work_folder(options.folder) as work:
        return measure_ttft(work, options.engines, sizes, is_quick=options.is_quick)


def run_split(options: Options, _: Bar) -> Measured:
    """A prompt on disk, partly loaded while the rest is computed, against the bound (needs vLLM)."""
    _need_engine("split", options)
    from tenuto.cli.bench.split import choose_sizes, measure_split
    from tenuto.cli.bench.workfolder import work_folder

    sizes = choose_sizes(options.engines, is_quick=options.is_quick)
    with work_folder(options.folder) as work:
        return measure_split(work, options.engines, sizes, is_quick=options.is_quick)


def run_serving(options: Options, _: Bar) -> Measured:
    """Multi-turn traffic through real engines: latencies and throughput (needs vLLM)."""
    _need_engine("serving", options)
    from tenuto.cli.bench.serving import choose_sizes, measure_serving
    from tenuto.cli.bench.workfolder import work_folder

    sizes = choose_sizes(options.engines, is_quick=options.is_quick)
    with work_folder(options.folder) as work:
        return measure_serving(work, options.engines, sizes, is_quick=options.is_quick)


def _need(package: str) -> None:
    if find_spec(package) is None:
        raise ConfigError(f"missing: {package}; run this in the environment that has it")


def _need_engine(name: str, options: Options) -> None:
    """vLLM; and a GPU for the default model. Who gives a model knows what the machine can run."""
    _need("vllm")
    import torch

    if not (options.is_quick or options.engines.model is not None or torch.cuda.is_available()):
        raise ConfigError(
            f"{name}: torch finds no CUDA device, which the shape of Llama 3 8B needs; run it on a machine with "
            "a GPU, give the folder of a small --model, or --quick"
        )


def run_events(options: Options, bar: Bar) -> Measured:
    """Events to a reader in another process, over ZeroMQ and NATS (Debian's package nats-server)."""
    _need("zmq")
    _need("nats")
    from tenuto.cli.bench.eventing import EventSizes, measure_events
    from tenuto.cli.bench.workfolder import work_folder

    quick = EventSizes(n_events=20_000, n_single=2_000)
    with work_folder(options.folder) as work:
        return measure_events(work, quick if options.is_quick else EventSizes(), bar)


def run_advisor(options: Options, bar: Bar) -> Measured:
    """Reads that a fast volume serves on a recorded TRACE: by the advisor, by LRU, at best."""
    from tenuto.cli.bench.advising import AdvisorSizes, measure_advisor
    from tenuto.settings import expand_user

    if options.trace is None:
        raise ConfigError("TRACE: none is given; give a file in Mooncake's format: tenuto bench advisor TRACE")
    sizes = AdvisorSizes(most_requests=200) if options.is_quick else AdvisorSizes()
    return measure_advisor(expand_user(options.trace, "TRACE"), sizes, bar)


def run_volumes(options: Options, bar: Bar) -> Measured:
    """Blocks read while they are moved between volumes, and while a volume is compacted."""
    from tenuto.cli.bench.volumes import VolumeSizes, measure_volumes
    from tenuto.cli.bench.workfolder import work_folder

    quick = VolumeSizes(n_blocks=48, phase_s=0.2)
    with work_folder(options.folder) as work:
        return measure_volumes(work, quick if options.is_quick else VolumeSizes(), bar)


BENCHES: dict[str, Callable[[Options, Bar], Measured]] = {
    "hash": run_hash,
    "pool": run_pool,
    "disk": run_disk,
    "scheduler": run_scheduler,
    "device": run_device,
    "layered": run_layered,
    "ttft": run_ttft,
    "split": run_split,
    "serving": run_serving,
    "events": run_events,
    "advisor": run_advisor,
    "volumes": run_volumes,
}

TARGETS: dict[str, dict[str, tuple[str, float]]] = {
    "hash": {"tokens_per_s_16": ("≥", 10_000_000)},
    "pool": {"match_8192_ms": ("≤", 2), "allocate_register_us": ("≤", 3), "bytes_per_block": ("≤", 400)},
    "disk": {
        "read_over_fio": ("≥", 0.9),
        "write_over_fio": ("≥", 0.9),
        "cores": ("≤", 0.5),
        "striped_over_sum": ("≥", 0.95),
        "striped_over_one": ("≥", 0.9),
    },
    "scheduler": {"step_ms_median": ("≤", 0.3), "admit_32k_ms": ("≤", 6)},
    "device": {
        **{f"{way}_{name}": ("≥", 0.98) for name in ("32k", "packed") for way in ("d2h", "h2d")},
        **{f"{way}_{name}": ("≥", 0.95) for name in ("4k", "hnd") for way in ("d2h", "h2d")},
        "gemm_slowdown": ("≤", 1.05),
        "copy_slowdown": ("≤", 1.05),
        "submit_ms_per_gib": ("≤", 3),
    },
    "layered": {
        "load_hidden": ("≥", 0.80),
        "ttft_over_bound": ("≤", 1.10),
        "submits_per_layer": ("≤", 1),
    },
    "ttft": {
        "host_hit_over_floor": ("≤", 1.10),
        "host_hit_over_native": ("≤", 1.0),
        "disk_hit_over_floor": ("≤", 1.15),
        "disk_hit_over_native": ("≤", 0.8),
        "disk_hit_over_recompute": ("≤", 1.02),
        "cold_over_off": ("≤", 1.02),
    },
    "split": {
        "split_over_bound": ("≤", 1.15),
        "split_over_recompute": ("≤", 0.80),
    },
    "serving": {
        "itl_median": ("≤", 1.02),
        "itl_p99": ("≤", 1.05),
        "throughput_over_native": ("≥", 1.0),
    },
    "events": {
        "lost": ("≤", 0),
        "is_in_order": ("≥", 1),
        "zmq_per_s": ("≥", 1_000_000),
        "nats_per_s": ("≥", 500_000),
        "publish_us": ("≤", 2),
        "bytes_per_event": ("≤", 120),
    },
    "advisor": {"over_lru": ("≥", 1.1)},
    "volumes": {"wrong": ("≤", 0), "failed": ("≤", 0), "given_back": ("≥", 0.9)},
}


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:  # pyright: ignore[reportPrivateUsage]
    """Add the subcommand `bench`."""
    lines = [f"  {name:<11}{run.__doc__}" for name, run in BENCHES.items()]
    parser = commands.add_parser(
        "bench",
        help="how fast the parts are on this machine",
        description="Measures one part of tenuto on this machine:\n" + "\n".join(lines),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", metavar="NAME", help=", ".join(BENCHES))
    parser.add_argument("trace", type=Path, nargs="?", metavar="TRACE", help="of advisor: recorded requests")
    parser.add_argument("--json", action="store_true", help="print one JSON object, no table")
    parser.add_argument("--out", type=Path, metavar="DIR", help="also keep the object as DIR/NAME-HOST.json")
    parser.add_argument(
        "--dir",
        type=Path,
        metavar="DIR",
        help="where to measure (disk: 4 GB, volumes: 2 GB, layered: 5 GB, split: 40 GB, ttft: 55 GB, given back)",
    )
    parser.add_argument("--quick", action="store_true", help="tiny sizes: shows that it runs, measures nothing")
    add_pool_options(parser)
    add_engine_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run one bench; 2 when there is none of that name."""
    if args.name not in BENCHES:
        print(f"tenuto bench: no bench is named {args.name!r}; there are {', '.join(BENCHES)}", file=sys.stderr)
        return EXIT_USAGE
    if args.trace is not None and args.name != "advisor":
        raise ConfigError(f"TRACE: is of tenuto bench advisor alone; leave {args.trace} out")
    engines, pool = read_engine_options(args), read_pool_options(args)
    if args.out is not None:
        check_out(args.out)
    console = errors = None
    if find_spec("rich") is not None:
        from rich.console import Console

        console, errors = Console(), Console(stderr=True)
    with Bar(errors) as bar:
        folder = chosen_folder(args.dir, "--dir", "bench")
        measured = BENCHES[args.name](Options(folder, args.quick, engines, pool, args.trace), bar)
    result = Result(
        name=args.name,
        machine=describe_machine(measured.file_system, measured.gpu),
        versions=describe_versions() | measured.versions,
        command="".join(
            (
                f"tenuto bench {args.name}",
                f" {args.trace.name}" if args.trace else "",
                " --quick" * args.quick,
                pool.as_arguments(),
                as_arguments(engines),
            )
        ),
        date=today(),
        figures=measured.figures,
        details=measured.details,
    )
    targets = None if args.quick else TARGETS[result.name]
    if args.json:
        print(result.as_json())
    elif console is not None:
        show(result, targets, console)
    else:
        print(plain_text(result, targets))
    if args.out is not None:
        path = result.save(args.out, measured.picture, is_quick=args.quick)
        print(f"kept as {path}", file=sys.stderr)
    return 0
