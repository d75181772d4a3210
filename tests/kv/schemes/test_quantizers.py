"""The quantizers against an oracle of plain loops, known errors, and every trap of scales, minima, groups and tails."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from breakeven.errors import BreakevenError, ConfigError
from breakeven.kv.schemes import base, registry
from breakeven.kv.schemes.registry import Scheme

AXES = ("token", "channel")
BITS = (2, 3, 4, 8)
FP16_RELATIVE = 2.0**-10  # spacing of float16 over its value


def scheme(kind: str, group_size: int = 0) -> Scheme:
    settings: dict[str, Any] = {"quantizer": "post_symmetric", "group_size": group_size}
    if kind != "post":
        settings |= {"quantizer": "uniform", "symmetric": kind == "symmetric"}
    return registry.build(kind, settings)


KINDS = ("post", "symmetric", "asymmetric")
all_kinds = pytest.mark.parametrize("kind", KINDS)
all_axes = pytest.mark.parametrize("axis", AXES)
all_bits = pytest.mark.parametrize("bits", BITS)


def gaussian(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def relative(x: Tensor, y: Tensor) -> float:
    return float((x.double() - y.double()).norm() / x.double().norm())


def error(x: Tensor, kind: str, bits: int, axis: str, group_size: int = 0) -> float:
    return relative(x, scheme(kind, group_size).quantize(x, bits, axis).dequantize())


# --- oracle: one group at a time, float64, float16 storage by search over all float16 numbers -------------------------

_FP16 = np.unique(np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float64))
_FP16 = np.concatenate([-_FP16[:0:-1], _FP16])


def stored_up(x: float) -> float:
    return float(_FP16[min(np.searchsorted(_FP16, x, side="left"), len(_FP16) - 1)])


def stored_down(x: float) -> float:
    return float(_FP16[max(np.searchsorted(_FP16, x, side="right") - 1, 0)])


def oracle_group(values: list[float], kind: str, bits: int) -> list[tuple[int, float]]:
    """Codes and values of one group, from the formulas in the literature."""
    if kind == "asymmetric":
        highest = 2**bits - 1
        low = stored_down(min(values))
        step = stored_up(np.float32(np.float32(max(values)) - np.float32(low)) / np.float32(highest))
    else:
        highest = 2**bits - 1 if kind == "post" else 2 ** (bits - 1) - 1
        low = 0.0
        step = stored_up(np.float32(max(abs(v) for v in values)) / np.float32(highest))
    lowest = {"asymmetric": 0, "post": -(2**bits), "symmetric": -highest}[kind]
    result = []
    for value in values:
        # numpy rounds halves to even, as torch does; float32, as the code documents
        code = 0 if step == 0 else int(np.round(np.float32(np.float32(value) - np.float32(low)) / np.float32(step)))
        code = min(max(code, lowest), highest)
        result.append((code, code * step + low))
    return result


def oracle(x: Tensor, kind: str, bits: int, axis: str, group_size: int) -> tuple[Tensor, Tensor]:
    """Codes [vectors, length] and values [T, d]."""
    rows = (x if axis == "token" else x.T).tolist()
    codes, values = [], []
    for row in rows:
        size = group_size or len(row)
        pairs = [p for i in range(0, len(row), size) for p in oracle_group(row[i : i + size], kind, bits)]
        codes.append([code for code, _ in pairs])
        values.append([value for _, value in pairs])
    dequantized = torch.tensor(values, dtype=torch.float64)
    return torch.tensor(codes), dequantized if axis == "token" else dequantized.T


@all_kinds
@all_axes
@all_bits
@pytest.mark.parametrize("group_size", [0, 4])
def test_codes_and_values_are_the_oracles(kind: str, axis: str, bits: int, group_size: int) -> None:
    x = gaussian(13, 8, seed=bits) * 3 + gaussian(1, 8, seed=1)  # 13 tokens: a short last group along tokens
    quantized = scheme(kind, group_size).quantize(x, bits, axis)
    codes, values = oracle(x, kind, bits, axis, group_size)
    assert torch.equal(quantized.codes.long(), codes)
    torch.testing.assert_close(quantized.dequantize().double(), values, rtol=1e-6, atol=1e-6)


def finite(limit: float) -> st.SearchStrategy[float]:
    return st.floats(-limit, limit, width=32, allow_nan=False, allow_infinity=False)


matrices = st.tuples(st.integers(1, 9), st.sampled_from([1, 2, 4, 8])).flatmap(
    lambda shape: st.lists(
        st.lists(finite(1000.0), min_size=shape[1], max_size=shape[1]), min_size=shape[0], max_size=shape[0]
    )
)


@given(rows=matrices, kind=st.sampled_from(KINDS), axis=st.sampled_from(AXES), bits=st.sampled_from(BITS),
       group_size=st.sampled_from([0, 1, 2, 4]))  # fmt: skip
def test_nothing_is_off_by_more_than_half_a_step(
    rows: list[list[float]], kind: str, axis: str, bits: int, group_size: int
) -> None:
    x = torch.tensor(rows)
    if axis == "token" and group_size and group_size < x.shape[1] and x.shape[1] % group_size:
        return
    quantized = scheme(kind, group_size).quantize(x, bits, axis)
    step = base.spread(quantized.scale.float(), quantized.group_size, quantized.codes.shape[-1])
    step = (step.transpose(-1, -2) if axis == "channel" else step).expand(x.shape)
    worst = (quantized.dequantize().double() - x.double()).abs() - step.double() / 2
    assert float(worst.max()) <= float(x.abs().max()) * 1e-6 + 1e-12
    assert torch.isfinite(quantized.dequantize()).all()


@given(rows=matrices, kind=st.sampled_from(KINDS), axis=st.sampled_from(AXES), bits=st.sampled_from(BITS))
def test_codes_fit_the_bits_that_are_counted(rows: list[list[float]], kind: str, axis: str, bits: int) -> None:
    s = scheme(kind)
    quantized = s.quantize(torch.tensor(rows), bits, axis)
    assert int(quantized.codes.max() - quantized.codes.min()) < s.levels(bits) <= 2**quantized.code_bits
    lowest = 0 if kind == "asymmetric" else -(s.levels(bits) // 2)
    assert int(quantized.codes.min()) >= lowest
    assert int(quantized.codes.max()) <= lowest + s.levels(bits) - 1


@all_bits
def test_levels_are_those_that_a_ramp_really_takes(bits: int) -> None:
    ramp = torch.linspace(-1, 1, 20_001)[None]
    expected = {"post": 2 ** (bits + 1) - 1, "symmetric": 2**bits - 1, "asymmetric": 2**bits}
    for kind in KINDS:
        codes = scheme(kind).quantize(ramp, bits, "token").codes
        assert len(codes.unique()) == expected[kind] == scheme(kind).levels(bits), kind
    assert scheme("post").quantize(ramp, bits, "token").code_bits == bits + 1
    assert scheme("symmetric").quantize(ramp, bits, "token").code_bits == bits


# --- the published quantizer and what it really is --------------------------------------------------------------------


def published(x: Tensor, bits: int, dim: int) -> Tensor:
    """The post's own lines, scale in float32."""
    qmax = 2**bits - 1
    scale = x.abs().amax(dim=dim, keepdim=True) / qmax
    return torch.clamp(torch.round(x / scale), -qmax - 1, qmax) * scale


@all_axes
@all_bits
@pytest.mark.parametrize("group_size", [0, 4])
def test_the_posts_b_bits_are_correct_symmetric_b_plus_1_bit_for_bit(axis: str, bits: int, group_size: int) -> None:
    x = gaussian(3, 29, 8, seed=bits) * torch.logspace(-3, 3, 8)
    post = scheme("post", group_size).quantize(x, bits, axis)
    correct = scheme("symmetric", group_size).quantize(x, bits + 1, axis)
    assert torch.equal(post.codes, correct.codes)
    assert torch.equal(post.dequantize(), correct.dequantize())
    assert post.stored_bits == correct.stored_bits
    assert scheme("post").levels(bits) == scheme("symmetric").levels(bits + 1)
    same_name = scheme("symmetric", group_size).quantize(x, bits, axis)
    assert not torch.equal(post.dequantize(), same_name.dequantize())


@all_axes
@all_bits
def test_only_fp16_storage_of_the_scale_separates_the_post_from_its_listing(axis: str, bits: int) -> None:
    x = gaussian(64, 16, seed=3)
    listing = published(x, bits, -1 if axis == "token" else -2)
    ours = scheme("post").quantize(x, bits, axis).dequantize()
    if bits < 8:
        # A value a hair from the middle of two steps may fall on the other side; all others differ by fp16 rounding.
        near = (ours - listing).abs() <= listing.abs() * FP16_RELATIVE + 1e-7
        assert float(near.double().mean()) > 0.99
    # 511 levels are finer than what fp16 can say of the scale: there the rounding itself is seen
    assert relative(x, ours) == pytest.approx(relative(x, listing), rel=0.002 if bits < 8 else 0.1)


@pytest.mark.parametrize(
    ("kind", "bits", "expected"),
    [
        ("symmetric", 2, 0.719), ("symmetric", 3, 0.252), ("symmetric", 4, 0.108), ("symmetric", 8, 0.006),
        ("asymmetric", 2, 0.450), ("asymmetric", 3, 0.193), ("asymmetric", 4, 0.090), ("asymmetric", 8, 0.0053),
        ("post", 2, 0.252), ("post", 3, 0.108), ("post", 4, 0.050),
    ],
)  # fmt: skip
@all_axes
def test_gaussian_errors_in_groups_of_64_are_the_known_ones(kind: str, bits: int, expected: float, axis: str) -> None:
    x = gaussian(2048, 128, seed=11)
    # the known figures have two or three digits
    assert error(x, kind, bits, axis, 64) == pytest.approx(expected, rel=0.015, abs=0.0006)


@all_kinds
@all_axes
def test_error_falls_with_every_bit_and_vanishes(kind: str, axis: str) -> None:
    x = gaussian(64, 32, seed=4) + 0.3
    errors = [error(x, kind, bits, axis) for bits in range(2, 17)]
    assert all(fewer > more for fewer, more in pairwise(errors))
    assert errors[-1] < 1e-4


@all_kinds
def test_at_16_bits_there_is_no_error_left(kind: str) -> None:
    assert error(gaussian(16, 32, seed=5), kind, 16, "token") < 3e-5


@all_kinds
def test_shared_outlier_channels_are_kept_by_scales_per_channel_only(kind: str) -> None:
    x = gaussian(128, 64, seed=6)
    x[:, [5, 37]] *= 30
    ordinary = torch.ones(64, dtype=torch.bool)
    ordinary[[5, 37]] = False
    s = scheme(kind)
    per_token = relative(x[:, ordinary], s.quantize(x, 4, "token").dequantize()[:, ordinary])
    per_channel = relative(x[:, ordinary], s.quantize(x, 4, "channel").dequantize()[:, ordinary])
    assert per_channel < 0.4 * per_token
    # and the other way round: outlier tokens
    y = x.T.contiguous()
    assert error(y, kind, 4, "token") == pytest.approx(error(x, kind, 4, "channel"), rel=1e-6)


def test_channels_far_from_zero_need_a_minimum() -> None:
    """Keys of Qwen2.5 have large biases: errors are relative to what is left when each channel's mean is removed."""
    offset = torch.linspace(-200, 200, 64)
    x = gaussian(256, 64, seed=7) + offset
    spread_only = (x - x.mean(0)).norm()
    errors = {
        kind: float((scheme(kind, 32).quantize(x, 4, "channel").dequantize() - x).norm() / spread_only)
        for kind in ("symmetric", "asymmetric")
    }
    assert errors["asymmetric"] < 0.15
    assert errors["symmetric"] > 1.0


# --- constant groups, extreme magnitudes, bad input -------------------------------------------------------------------


@all_kinds
@all_axes
@pytest.mark.parametrize("value", [0.0, 0.5, -0.5, 1.0, -3.0, 2.0**-14, -640.0, 60000.0])
def test_a_constant_group_comes_back_and_infects_nothing(kind: str, axis: str, value: float) -> None:
    x = gaussian(8, 8, seed=8)
    if axis == "token":
        x[3] = value
    else:
        x[:, 3] = value
    back = scheme(kind).quantize(x, 2, axis).dequantize()
    assert torch.isfinite(back).all()
    constant = back[3] if axis == "token" else back[:, 3]
    # A minimum that fp16 can hold comes back exactly; absmax / levels is rounded to fp16 (2^-24 apart near zero).
    tolerance = 0.0 if kind == "asymmetric" else max(abs(value) * FP16_RELATIVE, 3 * 2.0**-24 * (value != 0))
    assert float((constant - value).abs().max()) <= tolerance


@all_kinds
@all_axes
def test_a_constant_that_fp16_cannot_hold_is_off_by_fp16_rounding_at_most(kind: str, axis: str) -> None:
    for value in (0.1, -0.1, 1000.3, 1e-5, -1e-5):
        back = scheme(kind).quantize(torch.full((5, 7), value), 4, axis).dequantize()
        spacing = max(abs(value) * FP16_RELATIVE, 15 * 2.0**-24)
        assert float((back - value).abs().max()) <= spacing, value


@all_kinds
def test_small_groups_are_not_given_a_scale_of_one(kind: str) -> None:
    x = gaussian(32, 32, seed=9)
    for factor in (1e-2, 1e-3):
        assert error(x * factor, kind, 4, "token") == pytest.approx(error(x, kind, 4, "token"), rel=0.05)


@all_kinds
@pytest.mark.parametrize("magnitude", [1e-6, 1e-7, 1e-12, 1e-38, 1e-45])
def test_groups_below_what_fp16_can_scale_are_finite_and_never_amplified(kind: str, magnitude: float) -> None:
    x = gaussian(4, 8, seed=10) * magnitude
    back = scheme(kind).quantize(x, 2, "token").dequantize()
    assert torch.isfinite(back).all()
    # half a step of the smallest float16 scale, or of the scale itself
    assert float((back - x).abs().max()) <= max(2.0**-24, 2 * magnitude)


@all_kinds
@pytest.mark.parametrize("magnitude", [65504.0, 7e4, 1e6, 3e38])
def test_beyond_fp16_values_saturate_and_never_become_nan_or_infinite(kind: str, magnitude: float) -> None:
    x = torch.tensor([[magnitude, -magnitude, 0.0, magnitude / 2]])
    quantized = scheme(kind).quantize(x, 2, "token")
    for numbers in (quantized.scale, quantized.minimum):
        assert numbers is None or torch.isfinite(numbers).all()
    back = quantized.dequantize()
    assert torch.isfinite(back).all()
    assert float(back[0, 0]) > float(back[0, 1])  # the order of the extremes survives


@all_kinds
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_whole_group_beyond_fp16_saturates_with_its_own_sign(kind: str, sign: float) -> None:
    quantized = scheme(kind).quantize(sign * torch.tensor([[1e6, 1.1e6]]), 2, "token")
    assert float(quantized.scale.min()) >= 0
    assert bool((quantized.dequantize() * sign >= 65504 - 1).all())


@all_kinds
@all_axes
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_nan_and_infinity_are_refused(kind: str, axis: str, bad: float) -> None:
    x = gaussian(4, 4)
    x[1, 2] = bad
    with pytest.raises(BreakevenError, match="NaN or infinity"):
        scheme(kind).quantize(x, 4, axis)


@pytest.mark.parametrize("shape", [(0, 8), (8, 0), (8,)])
def test_empty_tensors_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(BreakevenError, match="cannot be quantized"):
        scheme("asymmetric").quantize(torch.zeros(shape), 4, "token")


def test_an_unknown_axis_is_refused_with_the_valid_ones() -> None:
    with pytest.raises(ConfigError, match="token, channel"):
        scheme("asymmetric").quantize(gaussian(4, 4), 4, "head")


@all_kinds
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_every_dtype_is_quantized_in_float32_and_left_as_it_was(kind: str, dtype: torch.dtype) -> None:
    x = gaussian(6, 8, seed=12).to(dtype)
    before = x.clone()
    quantized = scheme(kind, 4).quantize(x, 4, "channel")
    assert torch.equal(x, before)
    assert torch.equal(quantized.codes, scheme(kind, 4).quantize(x.float(), 4, "channel").codes)
    assert quantized.dequantize().dtype == torch.float32
    assert quantized.scale.dtype == torch.float16


# --- groups, tails, heads ---------------------------------------------------------------------------------------------


@all_kinds
@all_axes
def test_texts_and_heads_are_quantized_apart(kind: str, axis: str) -> None:
    x = gaussian(2, 3, 10, 8, seed=13)
    x[1, 2] *= 1000
    whole = scheme(kind, 4).quantize(x, 3, axis).dequantize()
    for text in range(2):
        for head in range(3):
            alone = scheme(kind, 4).quantize(x[text, head], 3, axis).dequantize()
            assert torch.equal(whole[text, head], alone)


@all_kinds
@pytest.mark.parametrize("n_tokens", [1, 3, 4, 5, 8, 9, 31])
def test_groups_of_tokens_are_causal_and_a_short_tail_is_its_own_group(kind: str, n_tokens: int) -> None:
    x = gaussian(n_tokens, 8, seed=14)
    s = scheme(kind, 4)
    quantized = s.quantize(x, 3, "channel")
    assert quantized.scale.shape == (8, math.ceil(n_tokens / 4))
    full = n_tokens - n_tokens % 4
    back = quantized.dequantize()
    # What was full stays as it is when more tokens come: no scale looks at the future.
    longer = torch.cat([x, gaussian(6, 8, seed=15) * 100])
    assert torch.equal(s.quantize(longer, 3, "channel").dequantize()[:full], back[:full])
    if full < n_tokens:
        assert torch.equal(s.quantize(x[full:], 3, "channel").dequantize(), back[full:])


@all_kinds
def test_one_scale_for_a_whole_channel_does_look_at_the_future(kind: str) -> None:
    x = gaussian(16, 8, seed=16)
    longer = torch.cat([x, gaussian(6, 8, seed=15) * 100])
    s = scheme(kind)
    assert not torch.equal(s.quantize(longer, 3, "channel").dequantize()[:16], s.quantize(x, 3, "channel").dequantize())


@all_kinds
def test_tokens_can_be_stored_one_at_a_time_when_scales_are_per_token(kind: str) -> None:
    x = gaussian(9, 16, seed=17)
    s = scheme(kind, 8)
    one_by_one = torch.cat([s.quantize(x[t : t + 1], 4, "token").dequantize() for t in range(9)])
    assert torch.equal(one_by_one, s.quantize(x, 4, "token").dequantize())


def test_groups_that_do_not_divide_head_dim_are_refused_with_the_valid_sizes() -> None:
    with pytest.raises(ConfigError, match=r"group_size 5 does not divide head_dim 8.*1, 2, 4, 8"):
        scheme("asymmetric", 5).quantize(gaussian(4, 8), 4, "token")
    scheme("asymmetric", 5).quantize(gaussian(4, 8), 4, "channel")  # 4 tokens: a short group, counted


@all_kinds
@all_axes
def test_a_group_longer_than_the_vector_is_the_whole_vector(kind: str, axis: str) -> None:
    x = gaussian(8, 8, seed=18)
    long, whole = scheme(kind, 100).quantize(x, 3, axis), scheme(kind, 0).quantize(x, 3, axis)
    assert torch.equal(long.dequantize(), whole.dequantize())
    assert long.stored_bits == whole.stored_bits


# --- bits -------------------------------------------------------------------------------------------------------------


def packed_bits(quantized: base.Quantized) -> int:
    """Really pack: codes to a string of code_bits each, group numbers to their float16 bytes."""
    lowest = int(quantized.codes.min())
    code_string = "".join(f"{int(code) - lowest:0{quantized.code_bits}b}" for code in quantized.codes.flatten())
    numbers = [quantized.scale] + ([] if quantized.minimum is None else [quantized.minimum])
    return len(code_string) + 8 * sum(len(n.numpy().tobytes()) for n in numbers)


@given(kind=st.sampled_from(KINDS), axis=st.sampled_from(AXES), bits=st.sampled_from(BITS),
       n_tokens=st.integers(1, 40), d=st.sampled_from([4, 8, 16]),
       group_size=st.sampled_from([0, 1, 2, 4, 32]))  # fmt: skip
def test_the_formula_is_what_is_stored_to_the_bit(
    kind: str, axis: str, bits: int, n_tokens: int, d: int, group_size: int
) -> None:
    s = scheme(kind, group_size)
    x = gaussian(2, n_tokens, d, seed=n_tokens)
    quantized = s.quantize(x, bits, axis)
    assert quantized.stored_bits == packed_bits(quantized)
    formula = s.bits_per_element(bits, axis, n_tokens, d)
    assert quantized.bits_per_element == pytest.approx(formula, rel=1e-12)
    assert formula * x.numel() == pytest.approx(quantized.stored_bits, rel=1e-12)


@pytest.mark.parametrize(
    ("kind", "bits", "axis", "n_tokens", "d", "group_size", "expected"),
    [
        ("symmetric", 8, "token", 77, 64, 0, 8.25),  # int8 per token and head
        ("symmetric", 8, "token", 77, 128, 0, 8.125),
        ("asymmetric", 4, "token", 77, 64, 0, 4.5),
        ("asymmetric", 4, "token", 77, 128, 0, 4.25),
        ("asymmetric", 2, "channel", 128, 64, 32, 3.0),  # KIVI's groups
        ("asymmetric", 2, "token", 5, 64, 32, 3.0),
        ("asymmetric", 2, "channel", 33, 64, 32, 2 + 2 * 32 / 33),  # a tail of one token costs a whole group
        ("post", 2, "token", 77, 64, 0, 3.25),
        ("post", 2, "channel", 77, 64, 0, 3 + 16 / 77),
        ("post", 4, "token", 77, 64, 0, 5.25),
    ],
)
def test_real_bits_per_element_are_the_known_ones(
    kind: str, bits: int, axis: str, n_tokens: int, d: int, group_size: int, expected: float
) -> None:
    assert scheme(kind, group_size).bits_per_element(bits, axis, n_tokens, d) == pytest.approx(expected)


# --- planted bugs: each must break a property that the tests above rely on --------------------------------------------


def _truncated(x: Tensor, scale: Tensor, highest: int) -> Tensor:
    return (x / scale).trunc().clamp(-highest, highest) * scale


def _one_bit_too_many(x: Tensor, scale: Tensor, highest: int) -> Tensor:
    return (x / scale * (2 * highest + 1) / highest).round() * scale * highest / (2 * highest + 1)


def _signed_max(x: Tensor, scale: Tensor, highest: int) -> Tensor:
    step = x.amax(-1, keepdim=True) / highest
    return (x / step).round().clamp(-highest, highest) * step


@pytest.mark.parametrize("bug", [_truncated, _one_bit_too_many, _signed_max])
def test_planted_bugs_miss_the_known_gaussian_error(bug: Callable[[Tensor, Tensor, int], Tensor]) -> None:
    x = gaussian(4096, 64, seed=11)
    right = (x / (x.abs().amax(-1, keepdim=True) / 7)).round() * (x.abs().amax(-1, keepdim=True) / 7)
    assert relative(x, right) == pytest.approx(0.108, rel=0.015)
    assert abs(relative(x, bug(x, x.abs().amax(-1, keepdim=True) / 7, 7)) - 0.108) > 0.108 * 0.03


def test_planted_swapped_axes_are_seen() -> None:
    x = gaussian(32, 8, seed=19) * torch.logspace(0, 2, 8)
    small = {axis: scheme("symmetric").quantize(x, 4, axis).dequantize()[:, 0] for axis in AXES}
    assert relative(x[:, 0], small["channel"]) < 0.2
    assert relative(x[:, 0], small["token"]) > 0.9
    assert scheme("symmetric").quantize(x, 4, "channel").scale.shape == (8, 1)
    assert scheme("symmetric").quantize(x, 4, "token").scale.shape == (32, 1)


def test_planted_codes_of_an_unrounded_scale_are_biased() -> None:
    """Codes must be computed with the scale and minimum as stored: with the unrounded ones the result is another."""
    x = gaussian(512, 64, seed=20) * 0.01 + 1000.0  # fp16 holds 1000 to half a unit
    quantized = scheme("asymmetric").quantize(x, 8, "token")
    assert quantized.minimum is not None
    low, high = x.amin(-1, keepdim=True), x.amax(-1, keepdim=True)
    planted = ((x - low) / ((high - low) / 255)).round() * quantized.scale.float() + quantized.minimum.float()
    assert float((quantized.dequantize() - x).abs().max()) < 0.01
    assert float((planted - x).abs().max()) > 0.1
