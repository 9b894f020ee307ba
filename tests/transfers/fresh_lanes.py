"""The lanes' modules made anew from their sources, perhaps with an edit, upon a made-up GPU."""

import importlib
import itertools
import sys
from pathlib import Path

import tenuto.transfers.lanes

FOLDER = Path(tenuto.transfers.lanes.__file__).parent
NAME = tenuto.transfers.lanes.__name__
numbers = itertools.count()


class FreshLanes:
    """A package with the sources of the lanes. `edits`: (snippet, what stands there instead).

    A snippet stands once in all of them; `LookupError` when not, so that an edit never does nothing.
    """

    def __init__(self, folder, edits=()):
        self.name = f"fresh_lanes_{next(numbers)}"
        sources = {path.name: path.read_text("utf-8").replace(NAME, self.name) for path in FOLDER.glob("*.py")}
        for snippet, instead in edits:
            found = {name: text.count(snippet) for name, text in sources.items() if snippet in text}
            if list(found.values()) != [1]:
                raise LookupError(f"{snippet!r} stands in {found or 'no source'}, not once: name what it has become")
            (name,) = found
            sources[name] = sources[name].replace(snippet, instead)
        (folder / self.name).mkdir()
        for name, text in sources.items():
            (folder / self.name / name).write_text(text, "utf-8")
        sys.path.insert(0, str(folder))
        try:
            self.modules = [
                importlib.import_module(f"{self.name}.{Path(name).stem}") for name in sources if name[0] != "_"
            ]
        finally:
            sys.path.remove(str(folder))
        self.cuda, self.turns = (sys.modules[f"{self.name}.{name}"] for name in ("cuda", "turns"))

    def put_on(self, gpu, batch_run_bytes, turn_bytes):
        """Have them run on this GPU; from this size of contiguous runs on, they copy without a ring.

        Streams that copy out take turns after `turn_bytes`.
        """
        waiter = sys.modules[f"{self.name}.waiter"].Waiter
        fakes = {
            "torch": gpu.torch, "threading": gpu.threads, "BlockMover": gpu.mover,
            "Waiter": lambda: waiter(lambda: gpu.clock_s, gpu.sleep),
        }  # fmt: skip
        for module in self.modules:
            for name, fake in fakes.items():
                if name in vars(module) and not module.__name__.endswith(".waiter"):
                    setattr(module, name, fake)
        assert self.cuda.BATCH_RUN_BYTES
        assert self.turns.TURN_BYTES
        self.cuda.BATCH_RUN_BYTES, self.turns.TURN_BYTES = batch_run_bytes, turn_bytes

    def forget(self):
        for name in [name for name in sys.modules if name.split(".")[0] == self.name]:
            del sys.modules[name]
