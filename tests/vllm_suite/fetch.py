"""vLLM's tests from its source archive, with what they need, in a cache folder. Nothing is built."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from hashlib import sha256
from pathlib import Path

REQUIREMENTS = Path(__file__).resolve().parents[2] / "requirements"
PACKAGES = REQUIREMENTS / "vllm-tests.txt"


class Sources:
    """Where one version's tests lie: `tree` holds tests/, `site` the packages that they import."""

    def __init__(self, cache: Path, version: str) -> None:
        self.version = version
        self.tree = cache / f"vllm-{version}"
        self.site = cache / f"site-{sha256(PACKAGES.read_bytes()).hexdigest()[:12]}"
        self.downloads = cache / "downloads"

    def fetch(self) -> None:
        """Download and unpack what is not there yet. Raises `SystemExit` with pip's own words when pip fails."""
        if not self.site.is_dir():
            target = self.site.with_suffix(".part")
            shutil.rmtree(target, ignore_errors=True)
            _pip("install", "--no-deps", "--target", str(target), "-r", str(PACKAGES))
            target.rename(self.site)
        if not self.tree.is_dir():
            self._download()
            self._unpack()

    def _download(self) -> None:
        """pip asks the archive for its metadata: with an empty build target that runs no compiler."""
        pins = REQUIREMENTS / f"vllm-sdist-{self.version}.txt"
        if not pins.is_file():
            raise SystemExit(f"version: {self.version} has no requirements/{pins.name}; pin its archive there")
        build = {"VLLM_TARGET_DEVICE": "empty", "VLLM_VERSION_OVERRIDE": self.version, "PYTHONPATH": str(self.site)}
        what = ["--no-deps", "--no-build-isolation", "--require-hashes", "-d", str(self.downloads), "-r", str(pins)]
        _pip("download", *what, **build)

    def _unpack(self) -> None:
        """tests/ alone, without the root conftest.py, which imports audio, image and server packages."""
        name, part = f"vllm-{self.version}", self.tree.with_suffix(".part")
        shutil.rmtree(part, ignore_errors=True)
        with tarfile.open(self.downloads / f"{name}.tar.gz") as archive:
            members = [m for m in archive if m.name.startswith(f"{name}/tests/")]
            archive.extractall(part, members=members, filter="data")
        (part / name / "tests" / "conftest.py").unlink()
        (part / name).rename(self.tree)
        part.rmdir()


def _pip(*arguments: str, **variables: str) -> None:
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "--no-input", *arguments]
    if code := subprocess.run(command, env=os.environ | variables, check=False).returncode:
        raise SystemExit(code)
