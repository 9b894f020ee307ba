"""As one of several connectors under vLLM's `MultiConnector`."""

import pytest

from tenuto.testing.files import BROKEN, make_faulty
from tests.engine.tiny import BLOCK_TOKENS, prompt

pytestmark = pytest.mark.engine

TOKENS = prompt(50, 300)


class Together:
    """Starts engines with tenuto and vLLM's example connector, in a given order."""

    def __init__(self, start, tmp_path):
        self._start, self._tmp_path = start, tmp_path

    def __call__(self, order, **parent):
        example = {
            "kv_connector": "ExampleConnector", "kv_role": "kv_both",
            "kv_connector_extra_config": {"shared_storage_path": str(self._tmp_path / "example")},
        }  # fmt: skip
        ours = {
            "kv_connector": "TenutoConnector", "kv_role": "kv_both",
            "kv_connector_module_path": "tenuto.connectors.vllm",
            "kv_connector_extra_config": {
                "layout": {"block_tokens": BLOCK_TOKENS}, "runtime": {"cost_gate": False},
                "tiers": {
                    "host": {"capacity": "16 MiB"},
                    "disk": {"path": str(self._tmp_path / "root"), "capacity": "64 MiB"},
                },
            },
        }  # fmt: skip
        children = [{"ours": ours, "example": example}[name] for name in order]
        transfer = {
            "kv_connector": "MultiConnector", "kv_role": "kv_both",
            "kv_connector_extra_config": {"connectors": children},
        }  # fmt: skip
        engine = self._start(kv_transfer_config=transfer | parent)
        parent = engine.scheduler.connector
        self.leader = parent._connectors[order.index("ours")].leader
        from vllm.distributed.kv_transfer import get_kv_transfer_group

        self.worker = get_kv_transfer_group()._connectors[order.index("ours")].worker
        return engine

    def settle(self, engine):
        while self.leader.has_pending:
            engine.llm.llm_engine.engine_core.engine_core.step()
        self.leader.check()
        return self.leader.statistics()


@pytest.fixture
def together(start, tmp_path):
    return Together(start, tmp_path)


def test_as_the_first_child_it_hits_host_and_after_a_restart_disk(together):
    engine = together(["ours", "example"])
    expected = engine.ask(TOKENS)[1]
    engine.forget()
    assert engine.ask(TOKENS) == (256, expected)
    figures = together.settle(engine)
    assert figures["tokens.loaded.host"] == 256
    assert figures["disk.registered"] == 4
    engine = together(["ours", "example"])
    assert engine.ask(TOKENS) == (256, expected)
    assert together.settle(engine)["moved.disk_to_host"] == 4


def test_behind_another_that_hits_it_gives_its_lease_back_and_keeps_what_is_computed(together):
    engine = together(["example", "ours"])
    expected = engine.ask(TOKENS)[1]
    engine.forget()
    n_cached, output = engine.ask(TOKENS)
    assert output == expected
    assert n_cached >= 256
    figures = together.settle(engine)
    assert figures.get("tokens.loaded", 0) == 0  # the example's own blocks were loaded
    assert figures["host.leased"] == figures["requests"] == 0
    assert figures["host.registered"] == 4


@pytest.mark.parametrize(("policy", "ends"), [("recompute", "length"), ("fail", "error")])
def test_a_failed_load_ends_as_the_parents_policy_says(together, policy, ends):
    engine = together(["ours", "example"])
    expected = engine.ask(TOKENS)[1]
    together.settle(engine)
    engine = together(["ours"], kv_load_failure_policy=policy)
    store = together.worker._store
    make_faulty(store).read_errno = BROKEN
    (output,) = engine.generate(TOKENS)
    assert output.outputs[0].finish_reason == ends
    assert list(output.outputs[0].token_ids) == (expected if ends == "length" else [])
    assert sum(n for name, n in together.settle(engine).items() if name.startswith("failed.disk_to_host")) == 4
