"""The settings: frozen structs, decoded strictly. No object reads the environment.

The same names serve a TOML file, a connector's JSON (`kv_connector_extra_config`) and the command line. A field added
here is there at once in all three.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal, cast, get_args, get_origin

import msgspec

from tenuto.errors import ConfigError
from tenuto.plugins import why_malformed, why_unknown

_UNITS = {"": 1, "B": 1} | {
    unit: base**power
    for power, letter in enumerate("KMGT", start=1)
    for unit, base in ((f"{letter}iB", 1024), (letter, 1024), (f"{letter}B", 1000))
}
_MOST_BYTES = 1 << 62
_MOST_SECONDS = 86400
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?i?B?)\s*")

Size = Annotated[str | int, msgspec.Meta(title="size")]
SizeOrAuto = Annotated[str | int, msgspec.Meta(title='size or "auto"')]
Folder = Annotated[str, msgspec.Meta(title="folder")]
File = Annotated[str, msgspec.Meta(title="file")]
Folders = Annotated[tuple[str, ...], msgspec.Meta(title="folders")]
Texts = Annotated[tuple[str, ...], msgspec.Meta(title="texts")]
DiskRuntime = Literal["file", "striped", "nixl+posix", "nixl+gds", "nixl+gds_mt", "cufile"]
Name = Annotated[str, msgspec.Meta(title="name")]
Url = Annotated[str, msgspec.Meta(title="URL")]
PolicyName = Annotated[str, msgspec.Meta(title="policy")]
AdmissionName = Annotated[str, msgspec.Meta(title="admission")]
Plugin = Annotated[str, msgspec.Meta(title="module:Class")]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=_MOST_SECONDS)]

# What is made of them stands above in the order of imports, and takes longer to import than a command to answer.
POLICY_NAMES = ("default", "lru", "slru", "lineage", "priority", "s3-fifo", "tinylfu")
ADMISSION_NAMES = ("default", "all", "frequency")


class Model(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the engine's model is told by."""

    weights: Name = "auto"
    """"auto": told by their files. Other text is your own name for exactly these weights, wherever they were copied."""


class Layout(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How tokens are cut into blocks."""

    block_tokens: Annotated[int, msgspec.Meta(ge=0, le=1 << 20)] = 0
    """Tokens per block, a multiple of the engine's block. 0: chosen so that a layer is at least 256 KiB."""


class Host(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The host memory tier."""

    capacity: Size = "4 GiB"
    """Bytes of host memory per rank."""
    policy: PolicyName = "default"
    """Which block goes when it is full: "default" (learns which come back), "lru", "slru", "lineage", "priority",
    "s3-fifo", "tinylfu", or a class of others, "module:Class"."""


class Disk(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The disk tier; off while `path` is empty."""

    path: Folder = ""
    """Folder on a local disk, shared by all engines of the node."""
    capacity: SizeOrAuto = "auto"
    """Bytes for all engines of the node together. "auto": half of what is free or already ours."""
    runtime: DiskRuntime = "file"
    """What reads and writes: "file" (direct I/O), "striped" (the same over several folders), or a library that has to
    be there: "nixl+posix", "nixl+gds", "nixl+gds_mt", "cufile"."""
    stripes: Folders = ()
    """Further folders, one a disk, that blocks are striped over beside `path`, with the runtime "striped". On the
    command line with commas between them."""
    store: Plugin = ""
    """A store of others in the place of pool files: "module:Class" of a class that keeps the contract of stores."""
    io_threads: Annotated[int, msgspec.Meta(ge=0, le=256)] = 0
    """Threads of a folder that move blocks or, where the kernel's queue (AIO) does that, check them. 0: 16, or 2 beside
    the queue."""
    file_bytes: Size = "1 GiB"
    """Size of one pool file, at most a sixteenth of the capacity; files are added as they are needed."""
    poll_s: Seconds = 2.0
    """How often the blocks of other engines on this node are looked up; 0: only at start."""
    policy: PolicyName = "default"
    """Which block goes when it is full: the names of tiers.host.policy."""
    admission: AdmissionName = "default"
    """Which blocks are written: "default" (all while there is room; when it is full, those seen before), "all", or
    "frequency" (those seen before)."""


class Device(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How blocks cross between a GPU's memory and host memory; without a GPU it changes nothing."""

    load_ring: Size = "256 MiB"
    """GPU memory that loads are staged in."""
    store_ring: SizeOrAuto = "auto"
    """GPU memory that stores are staged in. "auto": what the largest step fills, at most a quarter of what is free."""
    window: Size = "128 MiB"
    """One copy across the wire; a ring has at least two."""
    load_programs: Annotated[int, msgspec.Meta(ge=1, le=1024)] = 64
    """Programs of the kernel that puts loaded blocks into the engine's pages: at most one multiprocessor each."""
    store_programs: Annotated[int, msgspec.Meta(ge=1, le=1024)] = 64
    """Programs of the kernel that takes blocks out of the engine's pages."""


class Tiers(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where blocks are kept below the engine."""

    device: Device = Device()
    host: Host = Host()
    disk: Disk = Disk()


class Runtime(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Deadlines and bounds."""

    load_timeout_s: Annotated[float, msgspec.Meta(ge=0.001, le=_MOST_SECONDS)] = 30.0
    """A load that has not ended by then is given up: the engine recomputes."""
    shutdown_timeout_s: Seconds = 20.0
    """How long pending disk writes may take at shutdown."""
    write_window: Size = "512 MiB"
    """Bytes on the way to disk at any time; more waits in host memory, or is skipped."""
    retry_s: Seconds = 10.0
    """How long a tier that keeps failing is left alone before it is tried again."""
    cache_generated: bool = True
    """Keep the blocks of generated tokens too, not only those of prompts."""
    onboard: Literal["auto", "async", "layered"] = "async"
    """How hits are loaded. "async": a request waits until all of it is there, and others go on. "layered": its forward
    begins at once, and each layer waits for its own bytes. "auto": what delays all requests together least, by measured
    rates: "layered" for a request that is alone, and beside others when its load hides under its computing.
    """
    layers_ahead: Annotated[int, msgspec.Meta(ge=1, le=64)] = 4
    """Layers that a layered load is ahead of the one that is waited for, at most."""
    save: Literal["forward", "layers"] = "forward"
    """When what a forward fills leaves the engine's pages. "forward": behind it. "layers": some layers at a time, while
    later ones compute, which costs the engine's thread more where a step fills much.
    """
    cost_gate: bool = True
    """Load only as much of a hit as brings the first token sooner, by measured rates; false: all of it, always."""
    metrics_port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 0
    """Port for Prometheus; the ranks of data parallelism take it and the next ones. 0: none."""
    trace_file: File = ""
    """Where each worker writes what took its time, for Perfetto: FILE-rank0.json and so on, when it ends; empty: no."""
    record_file: File = ""
    """Where the scheduler's side records what was asked and decided, for `tenuto simulate`; the further engines of data
    parallelism beside it, as run-dp1.jsonl; empty: no."""


class Events(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What becomes of blocks, told to others; off while `url` is empty, and to routers while `router_url` is."""

    url: Url = ""
    """"zmq://HOST:PORT" to listen at, or a broker's "nats://HOST:PORT/SUBJECT". With zmq, each rank of data parallelism
    takes the next two ports."""
    node: Name = "auto"
    """The name of this machine in events. "auto": its host name."""
    worker: Name = "auto"
    """The name of this engine in events, the same when it is started again. "auto": the engine's own id."""
    idle_s: Annotated[float, msgspec.Meta(ge=0.1, le=_MOST_SECONDS)] = 10.0
    """A heartbeat is sent when there was nothing to tell for so long."""
    router_url: Url = ""
    """"zmq://HOST:PORT" to listen at for routers, who hear what vLLM's own publisher would tell."""
    router_schema: Literal["dynamo", "vllm"] = "dynamo"
    """What routers are told. "dynamo": the engine's device and our tiers as one, in blocks of the engine's size.
    "vllm": our tiers alone, in the media CPU and STORAGE, in blocks of `layout.block_tokens`."""
    engine_url: Url = "auto"
    """Where the engine tells of its device's blocks, for the schema "dynamo": "zmq://HOST:PORT?replay=PORT". "auto":
    what vLLM's `kv_events_config` says, if it has one; empty: routers are told of our tiers alone."""


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All settings of one engine."""

    model: Model = Model()
    layout: Layout = Layout()
    tiers: Tiers = Tiers()
    runtime: Runtime = Runtime()
    events: Events = Events()


@dataclass(frozen=True, slots=True)
class Leaf:
    """One setting: its dotted name, the struct it is a field of, its annotated type, its default."""

    name: str
    group: str
    type: Any
    default: str | int | float | bool | tuple[str, ...]

    @property
    def base(self) -> Any:
        """The type without its bounds."""
        return get_args(self.type)[0] if get_origin(self.type) is Annotated else self.type


@dataclass(frozen=True, slots=True)
class Fault:
    """A setting that is wrong, and one line saying why and what to do."""

    setting: str
    why: str
    beside: tuple[str, ...] = ()
    """The settings that make it wrong: of those that are given, one is where the mistake was made."""


def leaves(struct: type[msgspec.Struct] = Config, prefix: str = "") -> Iterator[Leaf]:
    """Every setting there is, in order."""
    for field in msgspec.structs.fields(struct):
        if _is_group(field.type):
            yield from leaves(field.type, f"{prefix}{field.name}.")
        else:
            yield Leaf(prefix + field.name, struct.__name__, field.type, field.default)


def parse_size(value: str | int, setting: str) -> int:
    """Bytes of "4 GiB", "512MiB", "2e9" is not one; raises `ConfigError` naming `setting`."""
    if isinstance(value, int) and not isinstance(value, bool):
        if 0 < value < _MOST_BYTES:
            return value
    elif isinstance(value, str):
        match = _SIZE.fullmatch(value)
        if match and match[2] in _UNITS and 1 <= float(match[1]) * _UNITS[match[2]] < _MOST_BYTES:
            return int(float(match[1]) * _UNITS[match[2]])
    raise ConfigError(f'{setting}: {value!r} is not a size; write it as "4 GiB", "512 MiB" or bytes')


def in_units(n_bytes: int) -> str:
    """A size that `parse_size` reads back as the same: whole MiB, else whole KiB, else bytes."""
    for unit, unit_bytes in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if n_bytes and n_bytes % unit_bytes == 0:
            return f"{n_bytes // unit_bytes} {unit}"
    return f"{n_bytes} B"


def in_mib(n_bytes: int) -> str:
    """A size that `parse_size` reads back as no less: whole MiB, rounded up."""
    return f"{-(-n_bytes // (1 << 20))} MiB"


def load_config(settings: dict[str, Any]) -> Config:
    """Decode and validate `settings`; raises `ConfigError` with one line for each that is wrong."""
    faults = find_faults(settings) or find_conflicts(msgspec.convert(settings, Config))
    if faults:
        raise ConfigError("\n".join(f"{fault.setting}: {fault.why}" for fault in faults))
    return msgspec.convert(settings, Config)


def find_conflicts(config: Config) -> list[Fault]:
    """Settings that are right alone, and not together."""
    return [*_disk_conflicts(config.tiers.disk), *_event_conflicts(config.events)]


def _event_conflicts(events: Events) -> list[Fault]:
    if not events.router_url:
        given = [name for name in ("router_schema", "engine_url") if getattr(events, name) != getattr(Events(), name)]
        why = "routers are told nothing without events.router_url; give that, or leave this out"
        return [Fault(f"events.{name}", why) for name in given]
    if events.router_schema == "vllm" and events.engine_url not in ("", "auto"):
        why = 'the schema "vllm" tells nothing of the engine; give events.router_schema "dynamo", or leave this out'
        return [Fault("events.engine_url", why, ("events.router_schema",))]
    return []


def _disk_conflicts(disk: Disk) -> list[Fault]:
    if not disk.path:
        given = [leaf.name for leaf in leaves(Disk) if getattr(disk, leaf.name) != leaf.default]
        why = "there is no disk tier without tiers.disk.path; give that folder, or leave this out"
        return [Fault(f"tiers.disk.{name}", why) for name in given]
    if disk.runtime == "striped" and not disk.stripes:
        why = "no folders to stripe over beside tiers.disk.path; give at least one"
        return [Fault("tiers.disk.stripes", why, ("tiers.disk.runtime",))]
    if disk.stripes and disk.runtime != "striped":
        why = f'"{disk.runtime}" stripes nothing; give "striped", or no stripes'
        return [Fault("tiers.disk.runtime", why, ("tiers.disk.stripes",))]
    return []


def find_faults(
    settings: dict[str, Any],
    struct: type[msgspec.Struct] = Config,
    prefix: str = "",
    root: type[msgspec.Struct] | None = None,
) -> list[Fault]:
    """All that is wrong in `settings`, a group of nested settings whose names start with `prefix`.

    `root`: all settings there are, for what may have been meant; None: those of `struct`.
    """
    root = root or struct
    faults: list[Fault] = []
    known = {field.name: field.type for field in msgspec.structs.fields(struct)}
    for key, value in settings.items():
        name = " ".join(f"{prefix}{key}".split())
        if key not in known:
            faults.append(Fault(name, f"unknown setting; {_nearest(str(key), known, prefix, root)}"))
        elif not _is_group(known[key]):
            faults += [Fault(name, why) for why in _whys(Leaf(name, struct.__name__, known[key], ""), value)]
        elif isinstance(value, dict):
            faults += find_faults(cast("dict[str, Any]", value), known[key], f"{name}.", root)
        else:
            faults.append(Fault(name, f"expected a group of settings, got {value!r}"))
    return faults


def _is_group(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def _nearest(key: str, known: dict[str, Any], prefix: str, root: type[msgspec.Struct]) -> str:
    """What was meant: what has that name elsewhere, else the nearest here, else what there is."""
    near = [name for name in _all_names(root) if name.rpartition(".")[2] == key]
    near = near or [prefix + name for name in difflib.get_close_matches(key, known, n=1, cutoff=0.5)]
    return f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(known)}"


def _all_names(root: type[msgspec.Struct]) -> list[str]:
    """Settings and groups."""
    names = (leaf.name.split(".") for leaf in leaves(root))
    return list(dict.fromkeys(".".join(parts[:n]) for parts in names for n in range(1, len(parts) + 1)))


_TEXTS = "a list of texts"
_WORDS: dict[Any, str] = {
    tuple[str, ...]: "a list of folders",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
}


def _whys(leaf: Leaf, value: Any) -> Iterator[str]:
    """What is wrong with one value: nothing, or one line."""
    if leaf.type == Size or (leaf.type == SizeOrAuto and value != "auto"):
        try:
            parse_size(value, "")
        except ConfigError as error:
            yield str(error).removeprefix(": ") + (', or "auto"' if leaf.type == SizeOrAuto else "")
        return
    try:
        value = msgspec.convert(value, leaf.base)
    except msgspec.ValidationError:
        choices = " or ".join(f'"{choice}"' for choice in get_args(leaf.base) if isinstance(choice, str))
        yield f"expected {choices or (_TEXTS if leaf.type == Texts else _WORDS[leaf.base])}, got {value!r}"
        return
    match msgspec.inspect.type_info(leaf.type):
        case msgspec.inspect.IntType(ge=least, le=most) | msgspec.inspect.FloatType(ge=least, le=most):
            if least is not None and most is not None and not least <= value <= most:
                yield f"{value} is out of range; give {least} to {most}"
        case _:
            pass
    if leaf.type in (Folder, Folders, File) and "\0" in "".join(value):
        yield f"has a zero byte in it; give the path of a {'file' if leaf.type == File else 'folder'}"
    if leaf.type == Folders and not all(value):
        yield "one of them is empty; give the path of a folder"
    if leaf.type == Plugin and value and (why := why_malformed(value)):
        yield why
    if leaf.type == PolicyName and (why := why_unknown("policy", value, POLICY_NAMES, takes_classes=True)):
        yield why
    if leaf.type == AdmissionName and (why := why_unknown("admission", value, ADMISSION_NAMES)):
        yield why
    if leaf.type == Name and not (value and value.isprintable() and value == value.strip()):
        yield f'{value!r} is no name; give "auto", or printable text that neither starts nor ends with a space'
