"""The grid of the attention-error measurement: every scheme x bits x axes on captured activations.

Keys are quantized as they are cached, after rotary embedding; every text and KV head apart, so that no group crosses
them. Attention and score error depend on the key axis alone and are computed once for all value axes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

import pandas as pd
from torch import Tensor

from breakeven.config import KvErrorConfig
from breakeven.kv import metrics
from breakeven.kv.schemes.registry import Scheme

# Scores of one chunk of texts at most (float32: 64 MB); texts are independent, so the chunks change no figure.
_CHUNK_SCORES = 16_000_000


class ErrorSums(TypedDict):
    """data/kv_error.parquet: squared errors and squared norms of one text x layer x KV head x scheme x axes x bits.

    Sums run over query rows from kv_error.skip_rows on and over the query heads of the KV head. The relative error of
    any set of rows is sqrt(sum of *_num / sum of *_den).
    """

    text_id: str
    layer: int
    kv_head: int
    scheme: str
    k_axis: str
    v_axis: str
    bits_nominal: int
    levels: int
    group_size: int
    context_tokens: int
    k_bits_real: float
    v_bits_real: float
    attention_num: float  # ||A - A^||^2
    attention_den: float  # ||A||^2
    score_num: float  # ||P(S - S^)||^2
    score_den: float  # ||P S||^2
    output_k_num: float  # ||O - O^||^2, K quantized
    output_v_num: float  # V quantized
    output_both_num: float  # both quantized
    output_den: float  # ||O||^2


@dataclass(frozen=True)
class Layer:
    """Captured activations of one layer, each [texts, heads, T, d], and what its attention does with them."""

    index: int
    q: Tensor
    k: Tensor
    v: Tensor
    scaling: float
    window: int | None


def measure_layer(
    layer: Layer, text_ids: Sequence[str], schemes: Sequence[Scheme], grid: KvErrorConfig
) -> pd.DataFrame:
    """Quantize one layer's keys and values in every way of the grid.

    Args:
        layer: the activations.
        text_ids: one a text.
        schemes: the quantizers.
        grid: bits, pairs of axes, skipped rows.

    Returns:
        `ErrorSums` rows.

    Raises:
        ConfigError: a scheme's groups do not divide head_dim.
        BreakevenError: the activations hold NaN or infinity.
    """
    texts, heads, n_tokens, _ = layer.q.shape
    size = max(1, _CHUNK_SCORES // (heads * n_tokens * n_tokens))
    tables = []
    for start in range(0, texts, size):
        part = slice(start, start + size)
        exact = metrics.reference(
            layer.q[part],
            layer.k[part],
            layer.v[part],
            scaling=layer.scaling,
            window=layer.window,
            skip_rows=grid.skip_rows,
        )
        for scheme in schemes:
            for bits in grid.bits:
                tables += _cells(exact, scheme, bits, grid, text_ids[part])
    table = pd.concat(tables, ignore_index=True)
    table.insert(1, "layer", layer.index)
    return table


def _cells(
    exact: metrics.Reference, scheme: Scheme, bits: int, grid: KvErrorConfig, text_ids: Sequence[str]
) -> list[pd.DataFrame]:
    """Measure one scheme at one width along every pair of axes."""
    v_axes = sorted({pair.v for pair in grid.axes})
    v_hats = {axis: scheme.quantize(exact.v, bits, axis).dequantize() for axis in v_axes}
    v_only = dict(zip(v_axes, metrics.value_errors(exact, list(v_hats.values())), strict=True))
    tables = []
    for k_axis in sorted({pair.k for pair in grid.axes}):
        k_hat = scheme.quantize(exact.k, bits, k_axis).dequantize()
        errors = metrics.key_errors(exact, k_hat, [exact.v, *v_hats.values()])
        both = dict(zip(v_axes, errors.outputs[1:], strict=True))
        for v_axis in sorted({pair.v for pair in grid.axes if pair.k == k_axis}):
            sums = {
                "attention_num": errors.attention,
                "attention_den": exact.attention,
                "score_num": errors.score,
                "score_den": exact.score,
                "output_k_num": errors.outputs[0],
                "output_v_num": v_only[v_axis],
                "output_both_num": both[v_axis],
                "output_den": exact.output,
            }
            names = _describe(scheme, bits, k_axis, v_axis, exact.k.shape[2], exact.k.shape[3])
            tables.append(_table(text_ids, names, sums))
    return tables


def _describe(scheme: Scheme, bits: int, k_axis: str, v_axis: str, n_tokens: int, head_dim: int) -> dict[str, Any]:
    return {
        "scheme": scheme.name,
        "k_axis": k_axis,
        "v_axis": v_axis,
        "bits_nominal": bits,
        "levels": scheme.levels(bits),
        "group_size": scheme.group_size,
        "context_tokens": n_tokens,
        "k_bits_real": scheme.bits_per_element(bits, k_axis, n_tokens, head_dim),
        "v_bits_real": scheme.bits_per_element(bits, v_axis, n_tokens, head_dim),
    }


def _table(text_ids: Sequence[str], names: Mapping[str, Any], sums: Mapping[str, Tensor]) -> pd.DataFrame:
    """Lay [texts, KV heads] sums out as rows."""
    kv_heads = next(iter(sums.values())).shape[1]
    columns: dict[str, Any] = {
        "text_id": [text_id for text_id in text_ids for _ in range(kv_heads)],
        "kv_head": list(range(kv_heads)) * len(text_ids),
        **names,
    }
    return pd.DataFrame(columns | {name: tensor.flatten().cpu().numpy() for name, tensor in sums.items()})
