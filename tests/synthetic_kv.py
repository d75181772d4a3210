"""Fabricated results of the KV-cache stages: error rows and channel statistics with known outliers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

AXES = (("token", "token"), ("channel", "channel"), ("channel", "token"), ("token", "channel"))
# Attention error of a scheme with keys per token and per channel, by nominal bits; the post's scheme has one bit more.
ERROR = {2: (0.966, 0.938), 3: (0.757, 0.453), 4: (0.410, 0.215), 5: (0.190, 0.100), 8: (0.020, 0.010),
         9: (0.010, 0.005)}  # fmt: skip
SCHEMES = {"post_symmetric": (1, 0), "uniform_symmetric": (0, 0), "uniform_asymmetric": (0, 0),
           "uniform_asymmetric_g32": (0, 32)}  # fmt: skip


def kv_error_rows(model: str, bits: tuple[int, ...] = (2, 3, 4, 8), layers: int = 3) -> list[dict[str, Any]]:
    """reports/metrics/kv_error.json: all layers together, then a few layers and heads alone."""
    rows = []
    for scheme, (extra, group) in SCHEMES.items():
        for k_axis, v_axis in AXES:
            for nominal in bits:
                places = [(None, None), *((layer, None) for layer in range(layers)), (0, 0)]
                rows += [_row(model, scheme, group, extra, nominal, k_axis, v_axis, *place) for place in places]
    return rows


def _row(
    model: str, scheme: str, group: int, extra: int, nominal: int, k_axis: str, v_axis: str,
    layer: int | None, kv_head: int | None,
) -> dict[str, Any]:  # fmt: skip
    error = ERROR[nominal + extra][k_axis == "channel"]
    v_error = ERROR[nominal + extra][0] * (0.5 if v_axis == "token" else 0.6)
    metrics = {
        "attention_error": error,
        "score_error_centred": error * 0.9,
        "output_error_k_only": error * 0.7,
        "output_error_v_only": v_error,
        "output_error_both": error * 0.7 + v_error,
    }
    intervals = {}
    for name, value in metrics.items():
        intervals |= {name: value, f"{name}_low": value * 0.95, f"{name}_high": value * 1.05}
    symmetric = scheme in {"post_symmetric", "uniform_symmetric"}
    levels = 2 ** (nominal + extra) - 1 if symmetric else 2**nominal
    scale_bits = (16 if symmetric else 32) / (group or (64 if k_axis == "token" else 256))
    real = nominal + extra + scale_bits
    return {
        "schema_version": 1, "model": model, "scheme": scheme, "k_axis": k_axis, "v_axis": v_axis,
        "bits_nominal": nominal, "levels": levels, "group_size": group, "context_tokens": 256, "layer": layer,
        "kv_head": kv_head, "k_bits_real": real, "v_bits_real": real, "bits_real": real, **intervals, "n_texts": 8,
    }  # fmt: skip


def kv_channels(generator: np.random.Generator, layers: int = 3, heads: int = 3, head_dim: int = 64) -> pd.DataFrame:
    """data/kv_channels.parquet: keys with two outlier channels a head, values without."""
    rows = []
    for layer in range(layers):
        for head in range(heads):
            for which in ("k_pre", "k_post", "v"):
                scale = np.abs(generator.normal(1.0, 0.15, size=head_dim))
                if which != "v":
                    scale[[5, 37]] *= 9.0
                rows += [
                    {"layer": layer, "kv_head": head, "channel": channel, "which": which, "mean_abs": s * 0.8,
                     "max_abs": s * 3.0, "std": s, "mean": 0.0}
                    for channel, s in enumerate(scale.tolist())
                ]  # fmt: skip
    return pd.DataFrame(rows)
