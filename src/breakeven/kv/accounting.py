"""How many bits a quantized cache really stores, and how many bytes a whole cache takes."""

from __future__ import annotations

import math

from breakeven.kv.schemes.base import GROUP_NUMBER_BITS, effective_group_size


def bits_per_element(
    n_tokens: int, head_dim: int, *, axis: str, group_size: int, code_bits: int, group_numbers: int
) -> float:
    """Return stored bits per element of one head: codes, and the fp16 numbers of every group, short ones included.

    Args:
        n_tokens: tokens in the cache.
        head_dim: channels of a head.
        axis: "token": vectors of head_dim channels; "channel": vectors of n_tokens tokens.
        group_size: elements that share a scale; 0: the whole vector.
        code_bits: bits of one code.
        group_numbers: fp16 numbers a group (1: scale; 2: scale and minimum).
    """
    length = head_dim if axis == "token" else n_tokens
    groups = math.ceil(length / effective_group_size(group_size, length))
    return code_bits + groups * group_numbers * GROUP_NUMBER_BITS / length


def kv_cache_bytes(layers: int, kv_heads: int, head_dim: int, seq: int, batch: int, bits_real: float) -> float:
    """Return the bytes of a KV cache: 2 * layers * kv_heads * head_dim * seq * batch * bits / 8 (claim KV1).

    Args:
        layers: decoder layers.
        kv_heads: KV heads a layer.
        head_dim: channels of a head.
        seq: tokens of a sequence.
        batch: sequences.
        bits_real: bits per element that are really stored, see `bits_per_element`; 16 for an fp16 cache.
    """
    return 2 * layers * kv_heads * head_dim * seq * batch * bits_real / 8
