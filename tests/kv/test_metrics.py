"""Errors of scores, attention and output against plain float64 loops, with the traps of each metric planted."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from breakeven.errors import BreakevenError
from breakeven.kv import metrics
from breakeven.kv.schemes import registry

RELATIVE = 2e-5  # float32 against float64


@dataclass
class Case:
    """One layer: q [texts, query heads, T, d], k, v, and quantized k and v."""

    q: Tensor
    k: Tensor
    v: Tensor
    k_hat: Tensor
    v_hat: Tensor
    scaling: float = 0.35
    window: int | None = None
    skip_rows: int = 1


def case(
    texts: int = 2, query_heads: int = 4, kv_heads: int = 2, n_tokens: int = 9, d: int = 8, *, seed: int = 0,
    noise: float = 0.3, window: int | None = None, skip_rows: int = 1,
) -> Case:  # fmt: skip
    generator = torch.Generator().manual_seed(seed)

    def normal(heads: int) -> Tensor:
        return torch.randn(texts, heads, n_tokens, d, generator=generator)

    q, k, v = normal(query_heads) * 2, normal(kv_heads), normal(kv_heads)
    k_hat, v_hat = k + noise * normal(kv_heads), v + noise * normal(kv_heads)
    return Case(q, k, v, k_hat, v_hat, window=window, skip_rows=skip_rows)


Sums = dict[str, Tensor]  # name -> [texts, KV heads] float64
NAMES = ("attention", "score", "output", "attention_error", "score_error", "k_only", "v_only", "both")


def measured(c: Case) -> Sums:
    exact = metrics.reference(c.q, c.k, c.v, scaling=c.scaling, window=c.window, skip_rows=c.skip_rows)
    keys = metrics.key_errors(exact, c.k_hat, [c.v, c.v_hat])
    values = metrics.value_errors(exact, [c.v_hat])
    found = (exact.attention, exact.score, exact.output, keys.attention, keys.score, *keys.outputs, *values)
    order = ("attention", "score", "output", "attention_error", "score_error", "k_only", "both", "v_only")
    return dict(zip(order, found, strict=True))


# --- oracle: one row at a time, python floats -------------------------------------------------------------------------


@dataclass
class Row:
    """One query row over its allowed keys."""

    scores: list[float]
    weights: list[float]
    output: list[float]


def dot(a: list[float], b: list[float]) -> float:
    return math.fsum(x * y for x, y in zip(a, b, strict=True))


def attend(q: list[float], k: list[list[float]], v: list[list[float]], scaling: float) -> Row:
    scores = [scaling * dot(q, key) for key in k]
    exponentials = [math.exp(score - max(scores)) for score in scores]
    weights = [e / math.fsum(exponentials) for e in exponentials]
    return Row(scores, weights, [dot(weights, [row[c] for row in v]) for c in range(len(v[0]))])


def centred(values: list[float]) -> list[float]:
    mean = math.fsum(values) / len(values)
    return [value - mean for value in values]


def square(a: list[float], b: list[float] | None = None) -> float:
    return math.fsum((x - y) ** 2 for x, y in zip(a, b or [0.0] * len(a), strict=True))


def oracle(c: Case) -> Sums:
    texts, query_heads, n_tokens, _ = c.q.shape
    kv_heads = c.k.shape[1]
    sums = {name: torch.zeros(texts, kv_heads, dtype=torch.float64) for name in NAMES}
    for text in range(texts):
        for head in range(query_heads):
            kv = head // (query_heads // kv_heads)
            q, k, v, k_hat, v_hat = (
                x.double().tolist()
                for x in (c.q[text, head], c.k[text, kv], c.v[text, kv], c.k_hat[text, kv], c.v_hat[text, kv])
            )
            for t in range(c.skip_rows, n_tokens):
                first = 0 if c.window is None else max(0, t - c.window + 1)
                seen = slice(first, t + 1)
                exact = attend(q[t], k[seen], v[seen], c.scaling)
                keys = attend(q[t], k_hat[seen], v[seen], c.scaling)
                values = attend(q[t], k[seen], v_hat[seen], c.scaling)
                both = attend(q[t], k_hat[seen], v_hat[seen], c.scaling)
                found = {
                    "attention": square(exact.weights),
                    "score": square(centred(exact.scores)),
                    "output": square(exact.output),
                    "attention_error": square(exact.weights, keys.weights),
                    "score_error": square(centred(exact.scores), centred(keys.scores)),
                    "k_only": square(exact.output, keys.output),
                    "v_only": square(exact.output, values.output),
                    "both": square(exact.output, both.output),
                }
                for name, value in found.items():
                    sums[name][text, kv] += value
    return sums


def check(c: Case) -> None:
    found, expected = measured(c), oracle(c)
    for name in NAMES:
        assert found[name].dtype == torch.float64, name
        torch.testing.assert_close(found[name], expected[name], rtol=RELATIVE, atol=1e-9, msg=name)


@pytest.mark.parametrize(
    ("query_heads", "kv_heads"), [(4, 4), (4, 2), (6, 2), (4, 1), (1, 1)], ids=["MHA", "GQA2", "GQA3", "MQA", "one"]
)
@pytest.mark.parametrize("window", [None, 1, 3, 9, 100])
@pytest.mark.parametrize("skip_rows", [0, 1, 4])
def test_every_sum_is_the_oracles(query_heads: int, kv_heads: int, window: int | None, skip_rows: int) -> None:
    check(case(query_heads=query_heads, kv_heads=kv_heads, window=window, skip_rows=skip_rows))


@pytest.mark.parametrize("n_tokens", [63, 64, 65, 66, 130])
@pytest.mark.parametrize("window", [None, 5, 64, 70])
def test_blocks_of_rows_leave_no_seam(n_tokens: int, window: int | None) -> None:
    """Row counts around the size of a block, and windows that begin in another block than they end in."""
    check(case(1, 2, 1, n_tokens, 4, window=window, seed=n_tokens))


@given(
    kv_heads=st.integers(1, 3), group=st.integers(1, 3), n_tokens=st.integers(2, 12), d=st.sampled_from([1, 2, 5]),
    window=st.one_of(st.none(), st.integers(1, 14)), skip=st.integers(0, 1), seed=st.integers(0, 10_000),
)  # fmt: skip
def test_any_shape_is_the_oracles(
    kv_heads: int, group: int, n_tokens: int, d: int, window: int | None, skip: int, seed: int
) -> None:
    check(case(1, kv_heads * group, kv_heads, n_tokens, d, window=window, skip_rows=skip, seed=seed))


def test_large_keys_with_a_common_offset_keep_their_digits() -> None:
    """Biased keys (Qwen2.5): scores of thousands that differ by little."""
    c = case(1, 2, 1, 12, 8, noise=0.01)
    offset = torch.linspace(-300, 300, 8)
    biased = Case(c.q, c.k + offset, c.v, c.k_hat + offset, c.v_hat)
    found, expected = measured(biased), oracle(biased)
    for name in NAMES:
        torch.testing.assert_close(found[name], expected[name], rtol=5e-3, atol=1e-7, msg=name)


# --- what each metric must and must not see ---------------------------------------------------------------------------


def test_values_change_the_output_and_neither_scores_nor_attention() -> None:
    c = case()
    exact = metrics.reference(c.q, c.k, c.v, scaling=c.scaling, skip_rows=1)
    first = metrics.key_errors(exact, c.k_hat, [c.v, c.v_hat])
    other = metrics.key_errors(exact, c.k_hat, [c.v, c.v_hat.flip(2)])
    assert torch.equal(first.attention, other.attention)
    assert torch.equal(first.score, other.score)
    assert torch.equal(first.outputs[0], other.outputs[0])
    assert not torch.allclose(first.outputs[1], other.outputs[1])
    assert not torch.allclose(*(metrics.value_errors(exact, [v])[0] for v in (c.v_hat, c.v_hat.flip(2))))


@given(seed=st.integers(0, 1000), size=st.floats(-50, 50))
def test_a_shift_of_whole_rows_of_scores_changes_nothing(seed: int, size: float) -> None:
    """The same vector added to every key adds q.u to all scores of a row: softmax and the centred score ignore it."""
    c = case(1, 2, 1, 8, 4, seed=seed)
    shift = size * torch.randn(4, generator=torch.Generator().manual_seed(seed))
    exact = metrics.reference(c.q, c.k, c.v, scaling=c.scaling)
    shifted = metrics.key_errors(exact, c.k + shift, [c.v])
    for error, norm in ((shifted.attention, exact.attention), (shifted.score, exact.score)):
        assert float((error / norm).max()) < 1e-9
    # and beside a real error it changes nothing either
    plain, moved = metrics.key_errors(exact, c.k_hat, [c.v]), metrics.key_errors(exact, c.k_hat + shift, [c.v])
    torch.testing.assert_close(plain.attention, moved.attention, rtol=1e-3, atol=1e-9)
    torch.testing.assert_close(plain.score, moved.score, rtol=1e-3, atol=1e-9)


def test_without_quantization_there_is_no_error() -> None:
    c = case()
    found = measured(Case(c.q, c.k, c.v, c.k, c.v))
    for name in ("attention_error", "score_error", "k_only", "v_only", "both"):
        assert float((found[name] / found["attention"]).max()) < 1e-12, name
    for name in ("attention", "score", "output"):
        assert float(found[name].min()) > 0


def test_both_is_neither_of_the_two_and_each_part_is_alone() -> None:
    c = case()
    full = measured(c)
    only_k, only_v = measured(Case(c.q, c.k, c.v, c.k_hat, c.v)), measured(Case(c.q, c.k, c.v, c.k, c.v_hat))
    torch.testing.assert_close(only_k["both"], full["k_only"])
    torch.testing.assert_close(only_v["both"], full["v_only"], rtol=1e-4, atol=1e-9)
    assert bool((full["both"] > torch.maximum(full["k_only"], full["v_only"])).all())


def test_the_future_and_what_the_window_hides_never_enter() -> None:
    c = case(1, 2, 1, 12, 4, window=4, skip_rows=0)
    before = measured(c)
    # 6 rows from the end on, keys 0 and 1 are hidden from all but rows 0 to 4
    exact = metrics.reference(c.q, c.k, c.v, scaling=c.scaling, window=4, skip_rows=5)
    moved_k, moved_v = c.k_hat.clone(), c.v_hat.clone()
    moved_k[:, :, :2] += 100
    moved_v[:, :, :2] += 100
    for k_hat, v_hat in ((c.k_hat, c.v_hat), (moved_k, moved_v)):
        keys = metrics.key_errors(exact, k_hat, [v_hat])
        if k_hat is c.k_hat:
            first = keys
    assert torch.equal(first.attention, keys.attention)
    assert torch.equal(first.score, keys.score)
    assert torch.equal(first.outputs[0], keys.outputs[0])
    # a text cut short is the beginning of the longer one: rows do not see what comes later
    half = measured(Case(*(x[:, :, :6] for x in (c.q, c.k, c.v, c.k_hat, c.v_hat)), window=4, skip_rows=0))
    rest = metrics.reference(c.q, c.k, c.v, scaling=c.scaling, window=4, skip_rows=6)
    torch.testing.assert_close(half["attention"] + rest.attention, before["attention"])
    torch.testing.assert_close(half["output"] + rest.output, before["output"])


def test_row_0_has_weight_1_and_no_error_so_skipping_it_raises_the_ratio() -> None:
    c = case(skip_rows=0)
    kept, skipped = measured(c), measured(Case(**{f.name: getattr(c, f.name) for f in fields(c)} | {"skip_rows": 1}))
    torch.testing.assert_close(kept["attention"] - skipped["attention"], torch.full((2, 2), 2.0, dtype=torch.float64))
    torch.testing.assert_close(kept["attention_error"], skipped["attention_error"])
    torch.testing.assert_close(kept["score_error"], skipped["score_error"])


def test_query_heads_of_a_kv_head_are_summed_and_others_are_not() -> None:
    c = case(1, 6, 2, 9, 8)
    whole = measured(c)
    for kv in range(2):
        alone = [
            measured(Case(c.q[:, [h]], *(x[:, [kv]] for x in (c.k, c.v, c.k_hat, c.v_hat))))
            for h in range(kv * 3, kv * 3 + 3)
        ]
        for name in NAMES:
            torch.testing.assert_close(whole[name][0, kv], sum(one[name][0, 0] for one in alone), rtol=1e-5, atol=1e-9)


def test_texts_are_apart() -> None:
    c = case(3)
    whole = measured(c)
    for text in range(3):
        alone = measured(Case(*(x[[text]] for x in (c.q, c.k, c.v, c.k_hat, c.v_hat))))
        for name in NAMES:
            torch.testing.assert_close(whole[name][text], alone[name][0], rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_every_dtype_is_measured_in_float32(dtype: torch.dtype) -> None:
    c = case()
    narrow = [x.to(dtype) for x in (c.q, c.k, c.v, c.k_hat, c.v_hat)]
    found, expected = measured(Case(*narrow)), measured(Case(*(x.float() for x in narrow)))
    for name in NAMES:
        torch.testing.assert_close(found[name], expected[name], msg=name)


def test_nothing_is_changed_in_place() -> None:
    c = case()
    before = [x.clone() for x in (c.q, c.k, c.v, c.k_hat, c.v_hat)]
    exact = metrics.reference(c.q, c.k, c.v, scaling=c.scaling, skip_rows=1)
    first = metrics.key_errors(exact, c.k_hat, [c.v, c.v_hat])
    metrics.value_errors(exact, [c.v_hat])
    again = metrics.key_errors(exact, c.k_hat, [c.v, c.v_hat])
    assert torch.equal(first.attention, again.attention)
    assert torch.equal(first.outputs[1], again.outputs[1])
    for x, y in zip(before, (c.q, c.k, c.v, c.k_hat, c.v_hat), strict=True):
        assert torch.equal(x, y)


@pytest.mark.parametrize("skip_rows", [-1, 9, 100])
def test_skipping_all_rows_is_refused(skip_rows: int) -> None:
    with pytest.raises(BreakevenError, match="9 rows"):
        measured(case(skip_rows=skip_rows))


@pytest.mark.parametrize(
    "change",
    [
        lambda c: (c.q[:, :3], c.k, c.v),
        lambda c: (c.q, c.k[:, :, :5], c.v[:, :, :5]),
        lambda c: (c.q, c.k, c.v[..., :4]),
        lambda c: (c.q[:1], c.k, c.v),
    ],
)
def test_shapes_that_do_not_fit_are_refused(change: Callable[[Case], tuple[Tensor, Tensor, Tensor]]) -> None:
    with pytest.raises(BreakevenError, match="do not fit"):
        metrics.reference(*change(case()), scaling=1.0)


# --- the sanity ladder, with the real quantizers ----------------------------------------------------------------------


def errors(c: Case, name: str, bits: int, k_axis: str, v_axis: str) -> dict[str, float]:
    settings = {"quantizer": "post_symmetric", "group_size": 0}
    if name != "post_symmetric":
        settings |= {"quantizer": "uniform", "symmetric": name == "symmetric"}
    scheme = registry.build(name, settings)
    k_hat = scheme.quantize(c.k, bits, k_axis).dequantize()
    v_hat = scheme.quantize(c.v, bits, v_axis).dequantize()
    found = measured(Case(c.q, c.k, c.v, k_hat, v_hat))
    norms = dict.fromkeys(("k_only", "v_only", "both"), "output") | {
        "attention_error": "attention",
        "score_error": "score",
    }
    return {error: float((found[error].sum() / found[norm].sum()).sqrt()) for error, norm in norms.items()}


@pytest.mark.parametrize("name", ["post_symmetric", "symmetric", "asymmetric"])
@pytest.mark.parametrize("axis", ["token", "channel"])
def test_every_error_falls_with_bits_and_vanishes(name: str, axis: str) -> None:
    c = case(2, 4, 2, 48, 16, seed=3)
    ladder = [errors(c, name, bits, axis, axis) for bits in (2, 3, 4, 6, 8, 14)]
    for metric in ladder[0]:
        values = [rung[metric] for rung in ladder]
        assert all(fewer > more for fewer, more in pairwise(values)), metric
        assert values[-1] < 1e-3, metric


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("axis", ["token", "channel"])
def test_the_posts_rows_are_those_of_one_bit_more(bits: int, axis: str) -> None:
    c = case(2, 4, 2, 40, 16, seed=4)
    assert errors(c, "post_symmetric", bits, axis, axis) == errors(c, "symmetric", bits + 1, axis, axis)


def test_outlier_channels_of_keys_make_a_scale_per_channel_better() -> None:
    c = case(2, 4, 2, 64, 32, seed=5)
    factor = torch.ones(32)
    factor[[3, 17]] = 20
    outliers = Case(c.q / factor, c.k * factor, c.v, c.k, c.v)  # the scores are the same
    token, channel = (errors(outliers, "symmetric", 4, axis, axis) for axis in ("token", "channel"))
    assert channel["attention_error"] < 0.5 * token["attention_error"]
    assert channel["score_error"] < 0.5 * token["score_error"]


# --- planted bugs: the oracle must tell each of them from the real thing ----------------------------------------------


def planted(c: Case, bug: str) -> Sums:
    if bug == "h % KVH":
        order = [h for kv in range(2) for h in range(c.q.shape[1]) if h % 2 == kv]
        return measured(Case(c.q[:, order], c.k, c.v, c.k_hat, c.v_hat))
    if bug == "no scaling":
        return measured(Case(c.q, c.k, c.v, c.k_hat, c.v_hat, scaling=1.0))
    if bug == "window off by one":
        return measured(Case(c.q, c.k, c.v, c.k_hat, c.v_hat, window=3))
    if bug == "rows skipped off by one":
        return measured(Case(c.q, c.k, c.v, c.k_hat, c.v_hat, skip_rows=2))
    if bug == "V for K":
        return measured(Case(c.q, c.v, c.k, c.v_hat, c.k_hat))
    assert bug == "no mask"
    flipped = [x.flip(2) for x in (c.q, c.k, c.v, c.k_hat, c.v_hat)]
    return measured(Case(*flipped))


@pytest.mark.parametrize(
    "bug", ["h % KVH", "no scaling", "window off by one", "rows skipped off by one", "V for K", "no mask"]
)
def test_planted_bugs_are_told_apart(bug: str) -> None:
    c = case(window=4 if bug == "window off by one" else None)
    wrong, expected = planted(c, bug), oracle(c)
    worst = max(float(((wrong[name] - expected[name]) / expected[name]).abs().max()) for name in NAMES)
    assert worst > 1000 * RELATIVE
