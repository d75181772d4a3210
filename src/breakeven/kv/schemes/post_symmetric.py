"""The quantizer of the post of 2026-08-29 (claims KV2, KV3), kept as published.

    scale = absmax / (2^b - 1),   code = clamp(round(x / scale), -2^b, 2^b - 1),   x^ = code * scale

|x| / scale never exceeds 2^b - 1, so the code -2^b is never taken: its "b bits" have 2^(b+1) - 1 levels, need b + 1
bits, and give exactly what a correct symmetric quantizer gives at b + 1 bits. Real bits are counted as such.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from breakeven.errors import ConfigError
from breakeven.kv.schemes import base


@dataclass(frozen=True)
class Settings:
    """Keys of a conf/kv/ file with this quantizer."""

    quantizer: str = "post_symmetric"
    group_size: int = 0

    def __post_init__(self) -> None:
        if self.group_size < 0:
            raise ConfigError(f"group_size is {self.group_size}. Valid: 0 (the whole vector) or more.")


def code_bits(bits: int, settings: Settings) -> int:
    """Bits that one code of the post's "b bits" really takes."""
    return bits + 1


def levels(bits: int, settings: Settings) -> int:
    """Distinct values that a code can take."""
    return (1 << (bits + 1)) - 1


def group_numbers(settings: Settings) -> int:
    """Numbers stored a group: the scale."""
    return 1


def quantize(x: Tensor, bits: int, axis: str, settings: Settings) -> base.Quantized:
    """Quantize the post's way.

    Args:
        x: [..., T, head_dim].
        bits: the post's b.
        axis: "token" or "channel".
        settings: the scheme's settings.

    Raises:
        ConfigError, BreakevenError: see `base.vectors`.
    """
    cut = base.vectors(x, axis, settings.group_size)
    highest = (1 << bits) - 1
    absmax = base.Vectors(cut.values.abs(), cut.group_size).reduce(largest=True)
    scale = base.round_up_to_fp16(absmax / highest)
    return base.encode(cut, scale, None, -highest - 1, highest, code_bits=code_bits(bits, settings), axis=axis)
