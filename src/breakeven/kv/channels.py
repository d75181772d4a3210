"""Statistics of every channel of keys and values: where outlier channels are (claim KV3)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypedDict

import pandas as pd
from torch import Tensor

WHICH = ("k_pre", "k_post", "v")


class ChannelRow(TypedDict):
    """data/kv_channels.parquet: one channel of one KV head, over all texts and tokens."""

    layer: int
    kv_head: int
    channel: int
    which: str  # k_pre: keys before rotary embedding; k_post: as cached; v: values
    mean_abs: float
    max_abs: float
    std: float  # around `mean`
    mean: float


def channel_statistics(layer: int, tensors: Mapping[str, Tensor]) -> pd.DataFrame:
    """Return `ChannelRow`s of one layer.

    Args:
        layer: its index.
        tensors: k_pre, k_post and v, each [texts, KV heads, T, d].
    """
    tables = []
    for which in WHICH:
        x = tensors[which].double()
        kv_heads, d = x.shape[1], x.shape[3]
        everywhere = (0, 2)  # texts and tokens
        tables.append(
            pd.DataFrame(
                {
                    "layer": layer,
                    "kv_head": [head for head in range(kv_heads) for _ in range(d)],
                    "channel": list(range(d)) * kv_heads,
                    "which": which,
                    "mean_abs": x.abs().mean(everywhere).flatten().numpy(),
                    "max_abs": x.abs().amax(everywhere).flatten().numpy(),
                    "std": x.std(everywhere, correction=0).flatten().numpy(),
                    "mean": x.mean(everywhere).flatten().numpy(),
                }
            )
        )
    return pd.concat(tables, ignore_index=True)
