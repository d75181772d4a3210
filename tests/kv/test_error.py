"""The grid of the attention-error measurement: no cell left out, mixed up between texts and heads, or there twice."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pandas as pd
import pytest
import torch
from torch import Tensor

from breakeven.config import AxisPair, KvErrorConfig
from breakeven.errors import BreakevenError, ConfigError
from breakeven.kv import error, metrics
from breakeven.kv.error import ErrorSums, Layer, measure_layer
from breakeven.kv.schemes import registry

TEXTS = ("a", "b", "c")
AXES = ("token", "channel")
PAIRS = list(itertools.product(AXES, AXES))
KEYS = ["text_id", "layer", "kv_head", "scheme", "k_axis", "v_axis", "bits_nominal"]
SUMS = [name for name in ErrorSums.__annotations__ if name.endswith(("_num", "_den"))]
SCHEMES = [
    registry.build("post", {"quantizer": "post_symmetric", "group_size": 0}),
    registry.build("sym", {"quantizer": "uniform", "symmetric": True, "group_size": 0}),
    registry.build("asym_g4", {"quantizer": "uniform", "symmetric": False, "group_size": 4}),
]


def grid(bits: tuple[int, ...] = (2, 3, 4), pairs: list[tuple[str, str]] = PAIRS, skip_rows: int = 1) -> KvErrorConfig:
    return KvErrorConfig(list(bits), [AxisPair(*pair) for pair in pairs], skip_rows)


def layer(index: int = 5, *, window: int | None = None, seed: int = 0, n_tokens: int = 10) -> Layer:
    generator = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(len(TEXTS), heads, n_tokens, 8, generator=generator) for heads in (4, 2, 2))
    return Layer(index, q, k, v, 0.3, window)


def measured(what: Layer | None = None, **arguments: Any) -> pd.DataFrame:
    return measure_layer(what or layer(), TEXTS, SCHEMES, grid(**arguments))


def direct(what: Layer, row: Any) -> dict[str, float]:
    """One row again, from one text and one KV head alone, with dense attention in float64."""
    text, head = TEXTS.index(row.text_id), row.kv_head
    scheme = next(s for s in SCHEMES if s.name == row.scheme)
    k, v = what.k[text, head], what.v[text, head]
    k_hat = scheme.quantize(k, row.bits_nominal, row.k_axis).dequantize()
    v_hat = scheme.quantize(v, row.bits_nominal, row.v_axis).dequantize()
    rows, keys = torch.arange(k.shape[0])[:, None], torch.arange(k.shape[0])[None]
    allowed = (keys <= rows) & (keys > rows - (what.window or k.shape[0] + 1))
    found = dict.fromkeys(SUMS, 0.0)
    for query_head in (2 * head, 2 * head + 1):

        def scores(keys_used: Tensor, query_head: int = query_head) -> Tensor:
            return (what.q[text, query_head].double() @ keys_used.double().T * what.scaling)[1:]

        def centred(s: Tensor) -> Tensor:
            mean = (s * allowed[1:]).sum(-1, keepdim=True) / allowed[1:].sum(-1, keepdim=True)
            return (s - mean) * allowed[1:]

        def weights(s: Tensor) -> Tensor:
            return s.masked_fill(~allowed[1:], -torch.inf).softmax(-1)

        a, a_hat = weights(scores(k)), weights(scores(k_hat))
        exact = a @ v.double()
        pieces = {
            "attention_num": a - a_hat, "attention_den": a,
            "score_num": centred(scores(k) - scores(k_hat)), "score_den": centred(scores(k)),
            "output_k_num": exact - a_hat @ v.double(), "output_v_num": exact - a @ v_hat.double(),
            "output_both_num": exact - a_hat @ v_hat.double(), "output_den": exact,
        }  # fmt: skip
        for name, piece in pieces.items():
            found[name] += float(piece.square().sum())
    return found


@pytest.mark.parametrize("window", [None, 4])
def test_every_row_is_what_its_text_and_head_give_alone(window: int | None) -> None:
    what = layer(window=window)
    table = measured(what, bits=(2, 4))
    for row in table.itertuples():
        expected = direct(what, row)
        for name in SUMS:
            assert getattr(row, name) == pytest.approx(expected[name], rel=1e-4), (name, row)


def test_the_grid_is_complete_and_no_cell_is_there_twice() -> None:
    table = measured()
    assert list(table.columns) == list(ErrorSums.__annotations__)
    assert len(table) == len(TEXTS) * 2 * len(SCHEMES) * 3 * len(PAIRS)
    assert not table.duplicated(KEYS).any()
    assert set(table["layer"]) == {5}
    assert (table[SUMS] > 0).all(axis=None)
    assert not table.isna().any(axis=None)


@pytest.mark.parametrize("pairs", [[("channel", "token")], [("token", "token"), ("channel", "token")], PAIRS[::-1]])
def test_only_the_pairs_that_were_asked_for_are_measured(pairs: list[tuple[str, str]]) -> None:
    table = measured(pairs=pairs)
    assert set(zip(table["k_axis"], table["v_axis"], strict=True)) == set(pairs)
    whole = measured().merge(table[KEYS], on=KEYS)
    pd.testing.assert_frame_equal(
        whole.sort_values(KEYS).reset_index(drop=True), table.sort_values(KEYS).reset_index(drop=True)
    )


def test_values_change_neither_attention_nor_scores_and_keys_not_the_values_alone() -> None:
    """The post's table has four rows for two numbers."""
    table = measured()
    same_keys = table.groupby(["text_id", "kv_head", "scheme", "k_axis", "bits_nominal"])
    for name in ("attention_num", "score_num", "output_k_num"):
        assert (same_keys[name].nunique() == 1).all()
    assert (same_keys["output_both_num"].nunique() == 2).all()
    same_values = table.groupby(["text_id", "kv_head", "scheme", "v_axis", "bits_nominal"])
    assert (same_values["output_v_num"].nunique() == 1).all()
    for name in ("attention_den", "score_den", "output_den"):
        assert (table.groupby(["text_id", "kv_head"])[name].nunique() == 1).all()


def test_the_posts_bits_are_the_correct_quantizers_bits_plus_one() -> None:
    table = measured(bits=(2, 3))
    post = table[(table["scheme"] == "post") & (table["bits_nominal"] == 2)]
    correct = table[(table["scheme"] == "sym") & (table["bits_nominal"] == 3)]
    same = [*SUMS, "levels", "k_bits_real", "v_bits_real"]
    assert (post[same].to_numpy() == correct[same].to_numpy()).all()
    assert set(post["levels"]) == {7}


def test_real_bits_count_scales_minima_and_short_groups() -> None:
    table = measured(bits=(2,))
    asym = table[table["scheme"] == "asym_g4"]
    # head_dim 8 in groups of 4: 2 + 32/4; 10 tokens in groups of 4, 4 and 2: 2 + 3 * 32/10
    assert set(asym[asym["k_axis"] == "token"]["k_bits_real"]) == {10.0}
    assert asym[asym["v_axis"] == "channel"]["v_bits_real"].to_numpy() == pytest.approx(11.6)
    sym = table[(table["scheme"] == "sym") & (table["k_axis"] == "channel")]
    assert sym["k_bits_real"].to_numpy() == pytest.approx(2 + 16 / 10)


def test_chunks_of_texts_change_no_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    together = measured()
    chunks = []
    real = metrics.reference
    monkeypatch.setattr(error, "_CHUNK_SCORES", 1)
    monkeypatch.setattr(metrics, "reference", lambda q, *a, **k: chunks.append(q.shape[0]) or real(q, *a, **k))
    apart = measured()
    assert chunks == [1, 1, 1]
    pd.testing.assert_frame_equal(
        together.sort_values(KEYS).reset_index(drop=True), apart.sort_values(KEYS).reset_index(drop=True), rtol=1e-5
    )


def test_activations_are_left_as_they_were() -> None:
    what = layer()
    before = [t.clone() for t in (what.q, what.k, what.v)]
    measured(what)
    assert all(torch.equal(a, b) for a, b in zip(before, (what.q, what.k, what.v), strict=True))


def test_activations_with_nan_are_refused() -> None:
    what = layer()
    what.k[1, 1, 3, 2] = float("nan")
    with pytest.raises(BreakevenError, match="NaN or infinity"):
        measured(what)


def test_groups_that_do_not_fit_the_head_are_refused_with_the_valid_sizes() -> None:
    scheme = registry.build("asym_g3", {"quantizer": "uniform", "symmetric": False, "group_size": 3})
    with pytest.raises(ConfigError, match="does not divide head_dim 8. Valid: 0"):
        measure_layer(layer(), TEXTS, [scheme], grid())


def _grouping(q: Tensor, *rest: Tensor, real: Callable[..., Any], **settings: Any) -> Any:
    return real(q[:, [0, 2, 1, 3]], *rest, **settings)  # h % KV heads instead of h // group


PLANTED: dict[str, Callable[..., Any]] = {
    "h % KV heads": _grouping,
    "window off by one": lambda *a, real, **s: real(*a, **s | {"window": s["window"] + 1}),
    "no window": lambda *a, real, **s: real(*a, **s | {"window": None}),
    "no scaling": lambda *a, real, **s: real(*a, **s | {"scaling": 1.0}),
    "no rows skipped": lambda *a, real, **s: real(*a, **s | {"skip_rows": 0}),
    "texts mixed up": lambda q, k, v, real, **s: real(q, k.roll(1, 0), v.roll(1, 0), **s),
}


@pytest.mark.parametrize("bug", PLANTED)
def test_planted_bugs_are_seen_by_the_direct_computation(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = metrics.reference
    monkeypatch.setattr(metrics, "reference", lambda *a, **s: PLANTED[bug](*a, real=real, **s))
    what = layer(window=4)
    table = measured(what, bits=(3,), pairs=[("channel", "token")])
    off = 0
    for row in table.itertuples():
        expected = direct(what, row)
        off += any(getattr(row, name) != pytest.approx(expected[name], rel=1e-4) for name in SUMS)
    assert off == len(table)
