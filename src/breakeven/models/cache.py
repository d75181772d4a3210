"""A full-precision KV cache that rolls back in constant time."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from breakeven.errors import BreakevenError


class KVCache:
    """Preallocated keys and values of every layer, each layer with its own length.

    Layers may differ in length between two steps of early-exit drafting (the first layers run ahead). Sliding-window
    layers keep every token too: the window is applied by the attention mask, so that a rollback never needs a key
    that was already dropped (transformers #47447, #48280).

    Args:
        n_layers: layers of the model.
        shape: (KV heads, capacity in tokens, head_dim).
        dtype: of keys and values.
        device: where they live.
    """

    def __init__(self, n_layers: int, shape: tuple[int, int, int], dtype: torch.dtype, device: torch.device) -> None:
        self.capacity = shape[1]
        # [1, kv_heads, capacity, head_dim] each
        self._keys = [torch.zeros(1, *shape, dtype=dtype, device=device) for _ in range(n_layers)]
        self._values = [torch.zeros(1, *shape, dtype=dtype, device=device) for _ in range(n_layers)]
        self.lengths = [0] * n_layers

    def update(self, keys: Tensor, values: Tensor, layer_idx: int, **_: Any) -> tuple[Tensor, Tensor]:
        """Append [1, kv_heads, m, head_dim] and return everything cached: the call that Transformers' layers make.

        Raises:
            BreakevenError: the cache is full.
        """
        start = self.lengths[layer_idx]
        stop = start + keys.shape[2]
        if stop > self.capacity:
            raise BreakevenError(
                f"the KV cache holds {self.capacity} tokens and {stop} are needed. Use shorter prompts or outputs, or "
                "raise hardware.max_context_tokens."
            )
        self._keys[layer_idx][:, :, start:stop] = keys
        self._values[layer_idx][:, :, start:stop] = values
        self.lengths[layer_idx] = stop
        return self._keys[layer_idx][:, :, :stop], self._values[layer_idx][:, :, :stop]

    def crop(self, n_tokens: int) -> None:
        """Keep the first `n_tokens` of every layer; layers that are shorter stay as they are. O(1).

        Raises:
            ValueError: `n_tokens` is negative.
        """
        if n_tokens < 0:
            raise ValueError(f"cannot keep {n_tokens} tokens; valid: 0 to {self.length}.")
        self.lengths = [min(length, n_tokens) for length in self.lengths]

    @property
    def length(self) -> int:
        """Tokens that every layer holds."""
        return min(self.lengths)

    def layer(self, index: int) -> tuple[Tensor, Tensor]:
        """Return the valid keys and values [1, kv_heads, length, head_dim] of one layer."""
        length = self.lengths[index]
        return self._keys[index][:, :, :length], self._values[index][:, :, :length]

    @property
    def nbytes(self) -> int:
        """Bytes allocated (capacity, not length)."""
        return sum(tensor.untyped_storage().nbytes() for tensor in (*self._keys, *self._values))
