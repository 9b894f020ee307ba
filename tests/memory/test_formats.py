"""Which arrangement an engine's tensors have: declared, told from their shapes, or refused."""

import dataclasses

import pytest
import torch

from tenuto.errors import UnsupportedModelError
from tenuto.memory.formats import (
    BLOCK_MAJOR_FORMATS,
    ENGINE_FORMATS,
    PACKED_HND,
    PACKED_NHD,
    KvFormat,
    Nesting,
    detect_format,
    named_format,
)
from tenuto.memory.layout import Dtype
from tenuto.memory.paged import PagedKV
from tenuto.testing.kvshapes import ARRANGEMENTS, BENCHED, MLA_ARRANGEMENTS, SHAPES, TINY, TINY_MLA, Shape, random_truth

pytestmark = pytest.mark.unit


def geometry(kv):
    strides = kv.page_stride, kv.head_stride * (kv.layout.n_heads > 1), kv.token_stride
    return kv.addresses, strides, kv.n_pages, kv.pages_per_block


@pytest.mark.parametrize("name", ARRANGEMENTS | MLA_ARRANGEMENTS)
def test_every_arrangement_is_told_from_its_shapes(name):
    shape = TINY if name in ARRANGEMENTS else TINY_MLA
    arrangement = (ARRANGEMENTS | MLA_ARRANGEMENTS)[name]
    tensors = arrangement.tensors(random_truth(shape, 7), shape.dtype)
    told = PagedKV(tensors, shape.layout, shape.page_tokens)
    declared = PagedKV(tensors, shape.layout, shape.page_tokens, arrangement.kv_format)
    assert geometry(told) == geometry(declared)


@pytest.mark.parametrize("name", BENCHED)
def test_what_the_bench_moves_lies_in_memory_like_what_the_tests_move(name):
    shape, arrangement = BENCHED[name]
    shape = dataclasses.replace(shape, n_layers=2)
    made = arrangement.random_tensors(shape, 3, "cpu"), arrangement.tensors(random_truth(shape, 3), shape.dtype)
    ours, tests = (PagedKV(tensors, shape.layout, shape.page_tokens, arrangement.kv_format) for tensors in made)
    assert geometry(ours)[1:] == geometry(tests)[1:]
    assert (ours.n_pages, ours.row_bytes) == (3, shape.k_dim * shape.dtype.itemsize)


@pytest.mark.parametrize("name", ["vllm-hnd", "vllm-nhd-view", "NL_X_TWO_NB_BS_NH_HS"])
def test_smaller_kernel_pages_are_told_too(name):
    shape = SHAPES["tiny-small-kernel-pages"]
    kv = PagedKV(ARRANGEMENTS[name].tensors(random_truth(shape, 7), shape.dtype), shape.layout, shape.page_tokens)
    assert (kv.n_pages, kv.n_kernel_pages, kv.pages_ratio, kv.pages_per_block) == (7, 14, 2, 6)


def test_addresses_are_those_of_the_tensors():
    tensors = ARRANGEMENTS["vllm-nhd-view"].tensors(random_truth(TINY, 7), TINY.dtype)
    kv = PagedKV(tensors, TINY.layout, TINY.page_tokens)
    assert kv.bases == tuple(tensor.data_ptr() for tensor in tensors)
    for layer, page, head, token in [(0, 0, 0, 0), (4, 6, 2, 3)]:
        row = kv.bases[layer] + page * kv.page_stride + head * kv.head_stride + token * kv.token_stride
        assert row == tensors[layer][page, head, token].data_ptr()
        assert row + kv.plane_stride == tensors[layer][page, head, token, TINY.k_dim :].data_ptr()
    assert (kv.row_bytes, kv.n_planes, kv.device) == (16, 2, torch.device("cpu"))


def test_planes_of_their_own_have_no_common_distance_but_addresses():
    tensors = ARRANGEMENTS["NL_X_TWO_X_NB_BS_NH_HS"].tensors(random_truth(TINY, 7), TINY.dtype)
    kv = PagedKV(tensors, TINY.layout, TINY.page_tokens)
    assert kv.addresses == tuple((k.data_ptr(), v.data_ptr()) for k, v in tensors)


def refused(tensors, shape, kv_format=None):
    with pytest.raises(UnsupportedModelError) as raised:
        PagedKV(tensors, shape.layout, shape.page_tokens, kv_format)
    assert "\n" not in str(raised.value)
    return str(raised.value)


def zeros(shape, *size, n=None):
    return [torch.zeros(size, dtype=torch.bfloat16) for _ in range(shape.n_layers if n is None else n)]


def test_two_heads_of_k_and_v_look_alike():
    shape = dataclasses.replace(TINY, n_heads=2)
    message = refused(zeros(shape, 7, 2, 4, 2, 8), shape)
    assert "(7, 2, 4, 2, 8)" in message
    assert "NL_X_NB_TWO_BS_NH_HS or NL_X_NB_NH_BS_TWO_HS" in message
    assert "declare its format" in message


def test_as_many_heads_as_tokens_look_alike():
    shape = dataclasses.replace(TINY, n_heads=4)
    tensors = zeros(shape, 7, 4, 4, 16)
    assert "ambiguous" in refused(tensors, shape)
    hnd, nhd = (PagedKV(tensors, shape.layout, 4, declared) for declared in (PACKED_HND, PACKED_NHD))
    assert (hnd.head_stride, hnd.token_stride) == (nhd.token_stride, nhd.head_stride) == (128, 32)


def test_two_pages_are_not_taken_for_k_and_v():
    assert "ambiguous" in refused(zeros(TINY, 2, 2, 4, 3, 8), TINY)


def test_two_layers_of_pairs_look_like_two_lists():
    shape = dataclasses.replace(TINY, n_layers=2)
    pairs = [zeros(shape, 7, 4, 3, 8, n=2), zeros(shape, 7, 4, 3, 8, n=2)]
    assert "TWO_X_NL_X_NB_BS_NH_HS or NL_X_TWO_X_NB_BS_NH_HS" in refused(pairs, shape)


def test_one_head_needs_no_declaration():
    shape = dataclasses.replace(TINY, n_heads=1)
    kv = PagedKV(zeros(shape, 7, 1, 4, 16), shape.layout, 4)
    assert kv.token_stride == 32


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda: [t[..., ::2] for t in zeros(TINY, 7, 3, 4, 32)], "contiguous"),
        (lambda: [t.expand(7, 3, 4, 16) for t in zeros(TINY, 7, 1, 4, 16)], "overlap"),
        (lambda: [t.as_strided((7, 3, 4, 16), (192, 64, 8, 1)) for t in zeros(TINY, 7, 3, 4, 16)], "overlap"),
        (lambda: [*zeros(TINY, 7, 3, 4, 16, n=4), *zeros(TINY, 8, 3, 4, 16, n=1)], "different geometry"),
        (
            lambda: [*zeros(TINY, 7, 3, 4, 16, n=4), torch.zeros(7, 4, 3, 16).bfloat16().mT.mT.permute(0, 2, 1, 3)],
            "different geometry",
        ),
        (lambda: [t.half() for t in zeros(TINY, 7, 3, 4, 16)], "float16, not bfloat16"),
        (lambda: zeros(TINY, 7, 5, 4, 16), r"shape \(7, 5, 4, 16\) is no known arrangement"),
        (lambda: zeros(TINY, 7, 3, 4, 16, n=3), "3 tensors of shape"),
        (lambda: torch.zeros(7, 3, 4, 16), "no known arrangement"),
        (list, "0 tensors"),
    ],
    ids=[
        "every second",
        "one head for all",
        "rows overlap",
        "a longer layer",
        "a turned layer",
        "dtype",
        "heads",
        "layers",
        "whole",
        "none",
    ],
)
def test_memory_that_is_not_understood_is_refused_in_one_line(make, what):
    import re

    assert re.search(what, refused(make(), TINY))


def test_a_declaration_that_does_not_fit_is_refused():
    assert "axes PKTHD" in refused(zeros(TINY, 7, 3, 4, 16), TINY, named_format("NL_X_NB_TWO_BS_NH_HS"))


def test_the_table_has_the_names_of_the_field_and_a_reason_for_each_without_a_format():
    assert len(ENGINE_FORMATS) == 17
    for name, known in (ENGINE_FORMATS | BLOCK_MAJOR_FORMATS).items():
        if isinstance(known, KvFormat):
            assert named_format(name) is known
        else:
            with pytest.raises(UnsupportedModelError, match=f"{name} is not supported: its pages"):
                named_format(name)
    with pytest.raises(UnsupportedModelError, match="NHD is not supported: the name is not known"):
        named_format("NHD")


LETTERS = {"NB": "P", "NL": "L", "TWO": "K", "BS": "T", "NH": "H", "HS": "D", "NBBS": "S", "ONE": "O", "CS": "C"}


@pytest.mark.parametrize("name", [name for name, known in ENGINE_FORMATS.items() if isinstance(known, KvFormat)])
def test_the_axes_are_what_the_field_s_name_says(name):
    *nests, axes = name.split("_X_")
    wanted = {(): Nesting.WHOLE, ("NL",): Nesting.PER_LAYER, ("TWO", "NL"): Nesting.PLANE_LISTS}
    wanted[("NL", "TWO")] = Nesting.LAYER_PAIRS
    expected = KvFormat("".join(LETTERS[part] for part in axes.split("_")), wanted[tuple(nests)])
    assert named_format(name) == expected


def test_opaque_latents_of_656_bytes_are_rows():
    shape = Shape(3, 1, 656, 0, page_tokens=64, block_tokens=128, dtype=Dtype.BYTES)
    tensors = [torch.zeros(9, 64, 656, dtype=torch.uint8) for _ in range(3)]
    found, _ = detect_format(tensors, shape.layout, 64)
    kv = PagedKV(tensors, shape.layout, 64, found)
    assert (found.axes, kv.row_bytes, kv.n_planes, kv.plane_stride) == ("PTD", 656, 1, 0)
