"""The one place that knows how Transformers builds a decoder: embed, layers one by one, head.

Speculation needs what `model(...)` does not offer: running only the first layers (an early-exit draft), running the
rest later, positions of several tokens behind a cache, and a cache that rolls back. The layer modules themselves are
Transformers' own, untouched; `tests/models/test_adapter.py` compares with the whole module for every architecture.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from breakeven.errors import BreakevenError
from breakeven.models.cache import KVCache
from breakeven.models.tokenizers import real_vocab_size


@dataclass(frozen=True)
class _Parts:
    """The modules of one architecture: what differs between model types, as data."""

    body: str  # attribute path of the decoder body
    layers: str
    norm: str
    attention: str
    rotary: str  # shared: one rotary embedding; by_layer_type: local and global ones; learned: absolute positions


_PARTS = {
    "llama": _Parts("model", "layers", "norm", "self_attn", "shared"),
    "qwen2": _Parts("model", "layers", "norm", "self_attn", "shared"),
    "qwen3": _Parts("model", "layers", "norm", "self_attn", "shared"),
    "gemma3_text": _Parts("model", "layers", "norm", "self_attn", "by_layer_type"),
    "gpt2": _Parts("transformer", "h", "ln_f", "attn", "learned"),
}


class LayeredModel:
    """A decoder-only model that can be run layer by layer behind a `KVCache`, at batch 1.

    Args:
        model: a Transformers causal language model of a supported architecture, in evaluation mode.
        tokenizer: its tokenizer; logits are cut to its real vocabulary, padding rows never reach a softmax.
        name: as results show it.

    Raises:
        BreakevenError: the architecture or its attention implementation is not supported.
    """

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, name: str) -> None:
        config: Any = model.config
        if config.model_type not in _PARTS:
            raise BreakevenError(
                f"architecture {config.model_type!r} of {name} is not supported. Supported: {', '.join(_PARTS)}."
            )
        if config._attn_implementation != "sdpa":
            # `_mask` returns None where SDPA is causal by itself; the eager path would attend to the future there.
            raise BreakevenError(
                f"{name} was loaded with attention {config._attn_implementation!r}. Load it with "
                'attn_implementation="sdpa".'
            )
        self.model, self.tokenizer, self.name = model.eval(), tokenizer, name
        self._parts = _PARTS[config.model_type]
        self._body: Any = getattr(model, self._parts.body)
        self._layers: nn.ModuleList = getattr(self._body, self._parts.layers)
        self._norm: nn.Module = getattr(self._body, self._parts.norm)
        self._lm_head: Any = model.get_output_embeddings()
        self._softcap: float | None = getattr(config, "final_logit_softcapping", None)
        self._layer_types: list[str] = list(getattr(config, "layer_types", None) or [])
        self.n_layers = len(self._layers)
        self.n_query_heads: int = config.num_attention_heads
        self.n_kv_heads: int = getattr(config, "num_key_value_heads", None) or self.n_query_heads
        self.head_dim: int = getattr(config, "head_dim", None) or config.hidden_size // self.n_query_heads
        self.max_context_tokens: int = config.max_position_embeddings
        self.dtype: torch.dtype = model.dtype
        self.device: torch.device = model.device
        self.vocab_size = real_vocab_size(tokenizer, config.vocab_size)
        self.windows = [self._window(config, layer) for layer in range(self.n_layers)]

    def _window(self, config: Any, layer: int) -> int | None:
        """Sliding window of a layer in tokens, the query's own included; None: full attention."""
        if self._layer_types and self._layer_types[layer] == "sliding_attention":
            window: int = config.sliding_window
            return window
        return None

    @property
    def attentions(self) -> list[nn.Module]:
        """The attention module of every layer."""
        return [getattr(layer, self._parts.attention) for layer in self._layers]

    @property
    def nbytes(self) -> int:
        """Bytes of the weights, tied tensors counted once."""
        storages = {p.untyped_storage().data_ptr(): p.untyped_storage().nbytes() for p in self.model.parameters()}
        return sum(storages.values())

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of keys and values that one token adds to the cache."""
        return 2 * self.n_layers * self.n_kv_heads * self.head_dim * self.dtype.itemsize

    @property
    def eos_ids(self) -> frozenset[int]:
        """Tokens that end an output: the generation config's (one or several), else the tokenizer's; may be empty."""
        generation: Any = self.model.generation_config
        named = generation.eos_token_id if generation is not None else None
        if named is None:
            named = self.tokenizer.eos_token_id
        # 0 is an ordinary token id (SmolLM2's own end of sequence, for one): only None means "none".
        if named is None:
            return frozenset()
        return frozenset(named) if isinstance(named, list | tuple) else frozenset([int(named)])

    def new_cache(self, capacity: int) -> KVCache:
        """Return an empty cache for `capacity` tokens."""
        shape = (self.n_kv_heads, capacity, self.head_dim)
        return KVCache(self.n_layers, shape, self.dtype, self.device)

    def embed(self, tokens: Tensor, start: int) -> Tensor:
        """Return the input of layer 0, [1, m, hidden], for tokens [1, m] at positions start..start+m-1."""
        hidden: Tensor = self.model.get_input_embeddings()(tokens)
        if self._parts.rotary == "learned":
            positions = torch.arange(start, start + tokens.shape[1], device=tokens.device)
            hidden = hidden + self._body.wpe(positions)[None]
        return hidden

    def run_layers(self, hidden: Tensor, start: int, first: int, last: int, cache: KVCache) -> Tensor:
        """Run layers first..last-1 on hidden [1, m, hidden] at positions start..; append to the cache.

        Returns:
            The hidden states behind layer last-1, [1, m, hidden].
        """
        rotary = self._rotary(hidden, start)
        masks: dict[tuple[int, int | None], Tensor | None] = {}
        for index in range(first, last):
            key = (cache.lengths[index], self.windows[index])
            if key not in masks:
                masks[key] = self._mask(hidden.shape[1], start, *key)
            arguments: dict[str, Any] = {"attention_mask": masks[key], "cache": cache}
            if rotary is not None:
                arguments["position_embeddings"] = rotary(index)
            hidden = self._layers[index](hidden, **arguments)
        return hidden

    def _rotary(self, hidden: Tensor, start: int) -> Callable[[int], tuple[Tensor, Tensor]] | None:
        """Return a function from layer index to its (cos, sin), each [1, m, head_dim]; None without rotary."""
        if self._parts.rotary == "learned":
            return None
        positions = torch.arange(start, start + hidden.shape[1], device=hidden.device)[None]
        if self._parts.rotary == "shared":
            shared = self._body.rotary_emb(hidden, positions)
            return lambda index: shared
        by_type = {kind: self._body.rotary_emb(hidden, positions, kind) for kind in set(self._layer_types)}
        return lambda index: by_type[self._layer_types[index]]

    def _mask(self, m: int, start: int, cached: int, window: int | None) -> Tensor | None:
        """Return the bottom-right causal mask [1, 1, m, cached + m], True where attention is allowed.

        None where Transformers' SDPA path does the same by itself: one query that sees everything, or a prompt
        from position 0 (its own causal flag is top-left aligned, right only there: pytorch #108108).
        """
        if cached != start:
            raise ValueError(f"layer holds {cached} tokens but the new ones start at position {start}.")
        stop = start + m
        if (window is None or stop <= window) and (m == 1 or start == 0):
            return None
        queries = torch.arange(start, stop, device=self.device)[:, None]
        keys = torch.arange(stop, device=self.device)[None]
        allowed = keys <= queries
        if window is not None:
            allowed &= keys > queries - window
        return allowed[None, None]

    def head(self, hidden: Tensor) -> Tensor:
        """Return logits [1, m, vocab_size] of hidden states behind any layer (final norm, then the LM head)."""
        logits: Tensor = self._lm_head(self._norm(hidden))[..., : self.vocab_size]
        if self._softcap is not None:
            logits = torch.tanh(logits / self._softcap) * self._softcap
        return logits

    @torch.inference_mode()
    def forward(self, tokens: Tensor, cache: KVCache, *, last_only: bool = False) -> Tensor:
        """Run tokens [1, m] behind the cache; return logits [1, m, vocab_size], or [1, 1, .] with `last_only`."""
        start = cache.lengths[0]
        hidden = self.run_layers(self.embed(tokens, start), start, 0, self.n_layers, cache)
        return self.head(hidden[:, -1:] if last_only else hidden)
