"""A failure of vLLM's tests is told from a fault of ours."""

import pytest

from tests.vllm_suite.verdicts import judge, summarise, table

pytestmark = pytest.mark.unit


def entry(test="f.py::t", outcome="passed", reason="", **changes):
    return {"test": test, "outcome": outcome, "reason": reason, "refused": False, "how": [], "asked": 0} | changes


def test_what_fails_with_the_stock_connector_too_is_not_our_fault():
    assert judge(entry(outcome="failed", reason="no GPU"), entry(outcome="failed", reason="x")) == (
        "here too",
        "no GPU",
    )


def test_what_fails_with_ours_alone_is_a_fault():
    assert judge(entry(), entry(outcome="failed", reason="x")) == ("fault", "x")
    assert judge(None, entry(outcome="failed", reason="x")) == ("fault", "x")


def test_a_refusal_is_no_fault():
    assert judge(entry(), entry(outcome="failed", reason="kv_role: ...", refused=True))[0] == "refused"


def test_a_parametrised_test_is_found_among_those_that_ours_must_fail():
    name = "tests/x.py::test_failed_receive_completion_honors_failure_policy"
    assert judge(entry(), entry(f"{name}[fail]", "failed"))[0] == "by design"
    assert judge(entry(), entry(f"{name}[recompute]", "failed"))[0] == "fault"


def test_tests_that_built_ours_are_counted_apart_from_those_that_did_not():
    ours = [
        entry("tests/v1/f.py::a", how=["by name", "by name"]),
        entry("tests/v1/f.py::b"),
        entry("tests/v1/f.py::c", "failed", "x", how=["attached"]),
        entry("tests/v1/g.py::d", "skipped", "no GPU"),
    ]
    summary = summarise([entry(e["test"]) for e in ours], ours)
    counts = summary["files"]["tests/v1/f.py"]
    assert (counts["tests"], counts["passed"], counts["built ours"], counts["built ours and passed"]) == (3, 2, 2, 1)
    assert (counts["constructions"], counts["by name"], counts["attached"]) == (3, 1, 1)
    assert summary["total"]["skipped"] == 1
    assert summary["reasons"] == {"fault": {"x": ["tests/v1/f.py::c"]}}
    assert table(summary).splitlines()[-1] == "| all | 4 | 2 | 2 | 1 | 0 | 0 | 1 | 0 | 1 |"
