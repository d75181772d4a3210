"""What all scalar quantizers share: groups along an axis, fp16 group numbers, codes, and the way back.

Two axes, as the literature names them (KIVI, arXiv:2402.02750, section 3):

- "token": one vector a token, its head_dim channels; a group is `group_size` consecutive channels.
- "channel": one vector a channel, its T tokens; a group is `group_size` consecutive tokens.

`group_size` 0 is the whole vector. A channel's scale over the whole text looks at future tokens, which no streaming
cache can do; groups of tokens can be stored as soon as they are full.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from breakeven.config import AXES
from breakeven.errors import BreakevenError, ConfigError

FP16_MAX = 65504.0
GROUP_NUMBER_BITS = 16  # a scale or a minimum as stored


@dataclass(frozen=True)
class Quantized:
    """A tensor as the cache would store it.

    Attributes:
        codes: [..., vectors, length] integers; vectors are tokens (axis "token") or channels (axis "channel").
        scale: [..., vectors, groups] float16.
        minimum: [..., vectors, groups] float16: what code 0 stands for; None: zero.
        code_bits: bits of one code.
        axis: "token" or "channel".
        group_size: elements that share a scale; the last group of a vector may be shorter.
    """

    codes: Tensor
    scale: Tensor
    minimum: Tensor | None
    code_bits: int
    axis: str
    group_size: int

    @property
    def stored_bits(self) -> int:
        """Bits that all codes and group numbers take, counted."""
        numbers = self.scale.numel() + (0 if self.minimum is None else self.minimum.numel())
        return self.codes.numel() * self.code_bits + numbers * GROUP_NUMBER_BITS

    @property
    def bits_per_element(self) -> float:
        """Stored bits over elements."""
        return self.stored_bits / self.codes.numel()

    def dequantize(self) -> Tensor:
        """Return the values, [..., T, head_dim] float32."""
        length = self.codes.shape[-1]
        values = self.codes.float() * spread(self.scale.float(), self.group_size, length)
        if self.minimum is not None:
            values += spread(self.minimum.float(), self.group_size, length)
        return values.transpose(-1, -2) if self.axis == "channel" else values


@dataclass(frozen=True)
class Vectors:
    """A tensor cut into vectors and groups.

    Attributes:
        values: [..., vectors, length] float32.
        group_size: elements of a group, at least 1; the last one may be shorter.
    """

    values: Tensor
    group_size: int

    def reduce(self, largest: bool) -> Tensor:
        """Return the maximum or minimum of every group, [..., vectors, groups]."""
        length = self.values.shape[-1]
        whole = length - length % self.group_size
        pick: Callable[[Tensor], Tensor] = (lambda t: t.amax(-1)) if largest else (lambda t: t.amin(-1))
        parts = []
        if whole:
            parts.append(pick(self.values[..., :whole].unflatten(-1, (-1, self.group_size))))
        if whole < length:
            parts.append(pick(self.values[..., whole:])[..., None])
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)


def vectors(x: Tensor, axis: str, group_size: int) -> Vectors:
    """Cut a tensor into vectors and groups.

    Args:
        x: [..., T, head_dim], any floating dtype; arithmetic goes on in float32.
        axis: "token" or "channel".
        group_size: elements that share a scale; 0: the whole vector.

    Raises:
        ConfigError: the axis is unknown, or groups do not divide head_dim.
        BreakevenError: the tensor is empty or holds NaN or infinity, which no scale can represent.
    """
    if axis not in AXES:
        raise ConfigError(f"axis is {axis!r}. Valid: {', '.join(AXES)}.")
    if x.dim() < 2 or x.numel() == 0:
        raise BreakevenError(f"a tensor of shape {tuple(x.shape)} cannot be quantized: it needs tokens and channels.")
    values = x.float()
    if not torch.isfinite(values).all():
        raise BreakevenError("the tensor to quantize holds NaN or infinity. Capture again, in float32.")
    if axis == "token":
        check_group_size(group_size, x.shape[-1])
    values = values.transpose(-1, -2).contiguous() if axis == "channel" else values
    return Vectors(values, effective_group_size(group_size, values.shape[-1]))


def effective_group_size(group_size: int, length: int) -> int:
    """Return the elements of a full group: never more than the vector has."""
    return min(group_size, length) if group_size else length


def check_group_size(group_size: int, head_dim: int) -> None:
    """Refuse groups that would cut head_dim unevenly. A group longer than a head is one group a head.

    Raises:
        ConfigError: names the sizes that divide head_dim.
    """
    if group_size and group_size < head_dim and head_dim % group_size:
        valid = [str(size) for size in range(1, head_dim + 1) if head_dim % size == 0]
        raise ConfigError(
            f"group_size {group_size} does not divide head_dim {head_dim}. Valid: 0 (the whole vector), "
            f"{', '.join(valid)}."
        )


def spread(numbers: Tensor, group_size: int, length: int) -> Tensor:
    """Repeat every group's number for its elements: [..., groups] to [..., length], or [..., 1] to broadcast."""
    if numbers.shape[-1] == 1:
        return numbers
    return numbers.repeat_interleave(group_size, dim=-1)[..., :length]


def round_up_to_fp16(x: Tensor) -> Tensor:
    """Return the smallest float16 that is not below x, saturating at ±65504.

    Rounding up keeps |x| / scale within the codes, so nothing is ever clipped, and a positive scale never becomes
    0. Only beyond 65504 (never in a model that runs in fp16) the number saturates and values are clipped.

    Args:
        x: float32, any shape, finite.
    """
    bounded = x.clamp(-FP16_MAX, FP16_MAX)
    half = bounded.half()
    too_low = half.float() < bounded
    # The next float16 upwards: one more in magnitude above zero, one less below, the smallest subnormal at zero.
    bits = half.view(torch.int16)
    up = torch.where(half > 0, bits + 1, torch.where(half < 0, bits - 1, torch.ones_like(bits)))
    return torch.where(too_low, up, bits).view(torch.float16)


def round_down_to_fp16(x: Tensor) -> Tensor:
    """Return the largest float16 that is not above x, saturating at ±65504; see `round_up_to_fp16`."""
    return -round_up_to_fp16(-x)


def encode(
    cut: Vectors, scale: Tensor, minimum: Tensor | None, lowest: int, highest: int, *, code_bits: int, axis: str
) -> Quantized:
    """Turn values into codes with the group numbers *as stored*.

    code = clamp(round((x - minimum) / scale), lowest, highest). A scale of 0 is that of a constant group: its codes
    are 0 and it comes back as its minimum.

    Args:
        cut: the values.
        scale: [..., vectors, groups] float16, not negative.
        minimum: the same shape, or None.
        lowest: smallest code.
        highest: largest code.
        code_bits: bits of one code.
        axis: as in `vectors`.
    """
    length = cut.values.shape[-1]
    offset = cut.values if minimum is None else cut.values - spread(minimum.float(), cut.group_size, length)
    divisor = spread(torch.where(scale > 0, scale.float(), math.inf), cut.group_size, length)
    codes = (offset / divisor).round_().clamp_(lowest, highest).to(torch.int32)
    return Quantized(codes, scale, minimum, code_bits, axis, cut.group_size)
