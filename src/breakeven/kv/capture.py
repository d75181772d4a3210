"""Queries, keys and values of every layer, before and after rotary embedding, from a real forward pass.

After rotary: read where Transformers hands them to its attention function. Before rotary: read from the projections,
or from the per-head norms behind them (Qwen3, Gemma3), by forward hooks. Nothing is recomputed and no modelling code is
changed; hooks and the attention function are taken out again whatever happens.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from breakeven.errors import BreakevenError
from breakeven.models.adapter import LayeredModel

_NAME = "breakeven_capture"
# Architectures whose q_norm and k_norm see the heads before the tokens.
_NORM_HEADS_LEAD = {"gemma3_text"}


@dataclass
class LayerActivations:
    """One layer's tensors for one text, each [heads, tokens, head_dim]; keys and values have KV heads only.

    `output` is what the attention function returned, [tokens, query heads, head_dim]: the proof that the rest is
    right. Without rotary embedding (GPT-2) before and after are the same.
    """

    q_pre: Tensor = field(default_factory=lambda: torch.empty(0))
    k_pre: Tensor = field(default_factory=lambda: torch.empty(0))
    q_post: Tensor = field(default_factory=lambda: torch.empty(0))
    k_post: Tensor = field(default_factory=lambda: torch.empty(0))
    v: Tensor = field(default_factory=lambda: torch.empty(0))
    output: Tensor = field(default_factory=lambda: torch.empty(0))
    scaling: float = 0.0

    def tensors(self) -> dict[str, Tensor]:
        """Return what is stored."""
        return {name: getattr(self, name) for name in ("q_pre", "k_pre", "q_post", "k_post", "v")}


def capture(target: LayeredModel, tokens: list[int]) -> list[LayerActivations]:
    """Run one text through the model and return every layer's activations.

    Args:
        target: the model, in the dtype to capture in.
        tokens: token ids of the text.

    Returns:
        One entry a layer, on the CPU.

    Raises:
        BreakevenError: the text does not fit the model, or a layer was not seen.
    """
    if not 0 < len(tokens) <= target.max_context_tokens:
        raise BreakevenError(
            f"a text of {len(tokens)} tokens does not fit {target.name}. Set capture.tokens_per_text to "
            f"1..{target.max_context_tokens}."
        )
    layers = [LayerActivations() for _ in range(target.n_layers)]
    with _recording(target, layers):
        target.forward(torch.tensor([tokens], device=target.device), target.new_cache(len(tokens)), last_only=True)
    missing = [i for i, layer in enumerate(layers) if any(t.numel() == 0 for t in layer.tensors().values())]
    if missing:
        raise BreakevenError(
            f"nothing was captured in layers {missing} of {target.name}: its modules have other names."
        )
    return layers


@contextlib.contextmanager
def _recording(target: LayeredModel, layers: list[LayerActivations]) -> Iterator[None]:
    """Record into `layers` while the block runs."""
    config: Any = target.model.config
    before, handles = config._attn_implementation, []
    ALL_ATTENTION_FUNCTIONS[_NAME] = _recorder(layers)
    try:
        config._attn_implementation = _NAME
        for index, attention in enumerate(target.attentions):
            handles += _hook_projections(attention, layers[index], target)
        yield
    finally:
        config._attn_implementation = before
        del ALL_ATTENTION_FUNCTIONS[_NAME]
        for handle in handles:
            handle.remove()


def _recorder(layers: list[LayerActivations]) -> Callable[..., tuple[Tensor, None]]:
    """Return an attention function that records what it is given, then does what SDPA attention does."""

    def attention(
        module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float, **kwargs: Any
    ) -> tuple[Tensor, None]:
        layer = layers[module.layer_idx]
        layer.q_post, layer.k_post, layer.v = _store(query[0]), _store(key[0]), _store(value[0])
        layer.scaling = scaling
        if layer.q_pre.numel() == 0:
            # No projection hook fired: a model without rotary embedding.
            layer.q_pre, layer.k_pre = layer.q_post, layer.k_post
        output, nothing = sdpa_attention_forward(module, query, key, value, mask, scaling=scaling, **kwargs)
        layer.output = _store(output[0])
        return output, nothing

    return attention


def _hook_projections(attention: nn.Module, layer: LayerActivations, target: LayeredModel) -> list[Any]:
    """Hook what feeds the rotary embedding: the per-head norms if there are any, else the projections."""
    if not hasattr(attention, "q_proj"):
        return []
    suffix = "norm" if hasattr(attention, "q_norm") else "proj"
    heads_lead = target.model.config.model_type in _NORM_HEADS_LEAD
    handles = []
    for name, n_heads in (("q", target.n_query_heads), ("k", target.n_kv_heads)):
        hook = _reader(layer, f"{name}_pre", (n_heads, target.head_dim), heads_lead)
        handles.append(getattr(attention, f"{name}_{suffix}").register_forward_hook(hook))
    return handles


def _reader(layer: LayerActivations, name: str, shape: tuple[int, int], heads_lead: bool) -> Callable[..., None]:
    """Return a hook that stores a module's output as [heads, tokens, head_dim].

    Args:
        layer: where to.
        name: which tensor.
        shape: (heads, head_dim).
        heads_lead: per-head norms run on [1, heads, T, d], not on [1, T, heads, d]; projections give [1, T, heads * d].
    """

    def hook(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        heads = output[0] if output.dim() == 4 and heads_lead else output[0].view(-1, *shape).transpose(0, 1)
        setattr(layer, name, _store(heads))

    return hook


def _store(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().clone()
