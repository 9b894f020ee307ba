"""pytest plugin for vLLM's tests: puts a connector in, and writes one line of JSON per test."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import suite_subject
import vllm
from vllm.distributed.kv_transfer import ensure_kv_transfer_shutdown

from tenuto.errors import ConfigError


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("tenuto")
    group.addoption("--connector", choices=("stock", "tenuto"), required=True, help="vLLM's own, or ours in its place")
    group.addoption("--engine", default="", help="the version of vLLM that is meant")
    group.addoption("--record", type=Path, required=True, help="file that gets a line per test")


def pytest_configure(config: pytest.Config) -> None:
    if not vllm.__version__.startswith(config.option.engine):
        raise pytest.UsageError(f"version: vLLM here is {vllm.__version__}, not {config.option.engine}; use --overlay")
    if config.option.connector == "tenuto":
        suite_subject.install()
    config.pluginmanager.register(Recorder(config.option.record), "tenuto-recorder")


_PLACE = re.compile(r"(?<![\w.])(?:/[\w.+-]+){2,}| at 0x[0-9a-f]+")


class Recorder:
    """Joins a test's three phases; the last word is the worst."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w")

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        suite_subject.BUILT.clear()
        self._entry = {"test": item.nodeid, "outcome": "passed", "reason": "", "refused": False, "asked": 0, "how": []}
        result = yield
        if suite_subject.BUILT:
            ensure_kv_transfer_shutdown()  # older engines leave their worker's connector to the next test
        self._entry["how"] = [subject.how for subject in suite_subject.BUILT]
        self._file.write(json.dumps(self._entry) + "\n")
        self._file.flush()
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self) -> Iterator[None]:
        """After a test that built ours: its books balance."""
        result = yield
        for subject in suite_subject.BUILT:
            self._entry["asked"] += subject.check()
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, call: pytest.CallInfo[None]) -> Iterator[None]:
        report = yield
        if report.outcome != "passed" and self._entry["outcome"] != "failed":
            self._entry["outcome"] = report.outcome
            self._entry["reason"] = _reason(call.excinfo.value)
            self._entry["refused"] = any(isinstance(error, ConfigError) for error in _chain(call.excinfo.value))
        return report

    def pytest_unconfigure(self) -> None:
        self._file.close()


@pytest.fixture
def caplog_vllm(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """As in the root conftest.py, which is not here: what vLLM's own logger says is caught too."""
    logger = logging.getLogger("vllm")
    logger.addHandler(caplog.handler)
    yield caplog
    logger.removeHandler(caplog.handler)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _reason(error: Any) -> str:
    """One line without paths and addresses: the error that refused the connector if one did, else the last one."""
    told = next((e for e in _chain(error) if isinstance(e, ConfigError)), error)
    words = _PLACE.sub("…", " ".join(f"{type(told).__name__}: {told}".split()))
    return words if len(words) <= 300 else words[:299] + "…"
