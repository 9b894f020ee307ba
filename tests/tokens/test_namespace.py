"""What makes keys and values interchangeable, and what does not."""

from dataclasses import fields, replace

import pytest

from tenuto.tokens import Namespace

pytestmark = pytest.mark.unit

BASE = Namespace(
    model="llama",
    config="c0ffee",
    weights="files:1234",
    compute_dtype="bfloat16",
    kv_dtype="bfloat16",
    quantisation="none",
    block_tokens=64,
    n_layers=32,
    n_kv_heads=8,
    k_dim=128,
    v_dim=128,
)
IDENTITY = [field.name for field in fields(Namespace) if field.name != "model"]


def other(name: str) -> Namespace:
    value = getattr(BASE, name)
    return replace(BASE, **{name: value + 1 if isinstance(value, int) else value + "x"})


@pytest.mark.parametrize("name", IDENTITY)
def test_a_difference_in_any_field_is_another_namespace(name):
    assert other(name).digest != BASE.digest


@pytest.mark.parametrize("name", [name for name in IDENTITY if name != "epoch"])
def test_a_difference_in_any_field_but_the_epoch_is_another_folder(name):
    assert other(name).folder != BASE.folder


def test_the_models_name_is_for_people():
    assert other("model").digest == BASE.digest


def test_all_namespaces_one_field_away_differ_from_each_other():
    assert len({other(name).digest for name in IDENTITY}) == len(IDENTITY)


def test_a_reset_changes_the_digest_and_keeps_the_folder():
    later = BASE.at_epoch(77)
    assert later.digest != BASE.digest
    assert later.folder == BASE.folder == BASE.digest.hex()
    assert later.at_epoch(0) == BASE


def test_the_digest_has_16_bytes_and_the_folder_32_hex_digits():
    assert len(BASE.digest) == 16
    assert bytes.fromhex(BASE.folder) == BASE.digest


def test_values_do_not_run_into_each_other():
    assert replace(BASE, config="ab", weights="c").digest != replace(BASE, config="a", weights="bc").digest
    assert replace(BASE, n_layers=1, n_kv_heads=12).digest != replace(BASE, n_layers=11, n_kv_heads=2).digest


def test_the_words_for_people_have_every_field_and_no_epoch():
    words = BASE.at_epoch(5).describe()
    assert words["model"] == "llama"
    assert words["epoch"] == 0
    assert set(words) == {field.name for field in fields(Namespace)}


def test_the_format_does_not_drift():
    """Fixed when version 1 was made: a change here makes every stored block unreadable."""
    assert BASE.digest.hex() == "e2cc671422e674573ddf9c87f2570fe5"
