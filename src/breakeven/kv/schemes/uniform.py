"""Correct uniform quantizers: symmetric and asymmetric, with no more levels than their bits can name.

    symmetric:   scale = absmax / q, q = 2^(b-1) - 1;  code = round(x / scale) in -q..q           2^b - 1 levels
    asymmetric:  scale = (max - min) / (2^b - 1);      code = round((x - min) / scale) in 0..2^b - 1   2^b levels

The minimum is kept as a real number, as in KIVI (arXiv:2402.02750) and KVQuant (arXiv:2401.18079). Scale and minimum
are rounded to fp16 first (the scale up, the minimum down) and codes are computed with what is stored.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from breakeven.errors import ConfigError
from breakeven.kv.schemes import base


@dataclass(frozen=True)
class Settings:
    """Keys of a conf/kv/ file with this quantizer."""

    quantizer: str = "uniform"
    symmetric: bool = False
    group_size: int = 0

    def __post_init__(self) -> None:
        if self.group_size < 0:
            raise ConfigError(f"group_size is {self.group_size}. Valid: 0 (the whole vector) or more.")


def code_bits(bits: int, settings: Settings) -> int:
    """Bits that one code takes."""
    return bits


def levels(bits: int, settings: Settings) -> int:
    """Distinct values that a code can take."""
    return (1 << bits) - 1 if settings.symmetric else 1 << bits


def group_numbers(settings: Settings) -> int:
    """Numbers stored a group: the scale, and the minimum if asymmetric."""
    return 1 if settings.symmetric else 2


def quantize(x: Tensor, bits: int, axis: str, settings: Settings) -> base.Quantized:
    """Quantize to `bits` bits.

    Args:
        x: [..., T, head_dim].
        bits: 2 to 8.
        axis: "token" or "channel".
        settings: the scheme's settings.

    Raises:
        ConfigError, BreakevenError: see `base.vectors`.
    """
    cut = base.vectors(x, axis, settings.group_size)
    if settings.symmetric:
        highest = (1 << (bits - 1)) - 1
        absmax = base.Vectors(cut.values.abs(), cut.group_size).reduce(largest=True)
        scale = base.round_up_to_fp16(absmax / highest)
        return base.encode(cut, scale, None, -highest, highest, code_bits=bits, axis=axis)
    highest = (1 << bits) - 1
    minimum = base.round_down_to_fp16(cut.reduce(largest=False))
    # Not negative: a minimum that saturated at 65504 may lie above the maximum.
    extent = (cut.reduce(largest=True) - minimum.float()).clamp(min=0)
    scale = base.round_up_to_fp16(extent / highest)
    return base.encode(cut, scale, minimum, 0, highest, code_bits=bits, axis=axis)
