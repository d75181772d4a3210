"""What was captured is what attention really used: each layer's output is recomputed from it."""

from __future__ import annotations

import math
import sys
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from breakeven.errors import BreakevenError
from breakeven.kv.capture import LayerActivations, capture
from breakeven.models.adapter import LayeredModel
from helpers.models import ARCHITECTURES, WINDOW, random_model

TOKENS = [5, 9, 3, 40, 7, 12, 33, 8, 5, 9, 21, 6, 17, 30, 2, 19, 4, 11, 25, 14, 9, 3]  # far beyond the window of 8


def attend(layer: LayerActivations, window: int | None, *, group: str = "h // G") -> Tensor:
    """Oracle, one query and head at a time, plain loops: [tokens, query heads, head_dim]."""
    n_heads, n_tokens, _ = layer.q_post.shape
    n_kv = layer.k_post.shape[0]
    out = torch.zeros(n_tokens, n_heads, layer.v.shape[-1], dtype=layer.v.dtype)
    for head in range(n_heads):
        kv = head // (n_heads // n_kv) if group == "h // G" else head % n_kv
        for t in range(n_tokens):
            first = 0 if window is None else max(0, t - window + 1)
            scores = [float(layer.q_post[head, t] @ layer.k_post[kv, s]) * layer.scaling for s in range(first, t + 1)]
            weights = [math.exp(score - max(scores)) for score in scores]
            for weight, s in zip(weights, range(first, t + 1), strict=True):
                out[t, head] += weight / sum(weights) * layer.v[kv, s]
    return out


def relative(a: Tensor, b: Tensor) -> float:
    return float(((a - b).norm() / b.norm()).detach())


def rotate(target: LayeredModel, layer: int, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    """Rotary embedding by the model's own function, [heads, tokens, head_dim]."""
    modelling: Any = sys.modules[type(target.attentions[layer]).__module__]
    rotary = target._rotary(q, 0)
    assert rotary is not None
    # the rotary module reads only dtype, device and length of what it is given
    cos, sin = target._rotary(torch.zeros(1, q.shape[1], 1, dtype=q.dtype), 0)(layer)  # type: ignore[misc]
    turned: tuple[Tensor, Tensor] = modelling.apply_rotary_pos_emb(q[None], k[None], cos, sin)
    return turned[0][0], turned[1][0]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_attention_output_recomputed_from_what_was_captured_matches_the_module(architecture: str) -> None:
    target = random_model(architecture)
    layers = capture(target, TOKENS)
    assert len(layers) == target.n_layers
    for index, layer in enumerate(layers):
        assert layer.q_post.shape == (target.n_query_heads, len(TOKENS), target.head_dim)
        assert layer.k_post.shape == layer.v.shape == (target.n_kv_heads, len(TOKENS), target.head_dim)
        assert relative(attend(layer, target.windows[index]), layer.output) < 1e-9


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_projected_output_is_the_attention_modules_own(architecture: str) -> None:
    target = random_model(architecture)
    seen: list[Tensor] = []
    handles = [a.register_forward_hook(lambda m, i, o: seen.append(o[0][0].clone())) for a in target.attentions]
    try:
        layers = capture(target, TOKENS)
    finally:
        for handle in handles:
            handle.remove()
    for index, (attention, layer, output) in enumerate(zip(target.attentions, layers, seen, strict=True)):
        project: Any = getattr(attention, "o_proj", None) or attention.c_proj
        recomputed = project(attend(layer, target.windows[index]).flatten(1))
        assert relative(recomputed, output) < 1e-9


@pytest.mark.parametrize("architecture", [a for a in ARCHITECTURES if a != "gpt2"])
def test_rotating_what_was_captured_before_gives_what_was_captured_after(architecture: str) -> None:
    target = random_model(architecture)
    for index, layer in enumerate(capture(target, TOKENS)):
        q, k = rotate(target, index, layer.q_pre, layer.k_pre)
        assert relative(q, layer.q_post) < 1e-9
        assert relative(k, layer.k_post) < 1e-9
        # position 0 is not rotated, the others are: before and after must not be swapped or the same
        assert relative(layer.k_pre[:, 0], layer.k_post[:, 0]) < 1e-9
        assert relative(layer.k_pre[:, 1:], layer.k_post[:, 1:]) > 1e-3


def test_without_rotary_embedding_before_is_after() -> None:
    for layer in capture(random_model("gpt2"), TOKENS):
        assert torch.equal(layer.q_pre, layer.q_post)
        assert torch.equal(layer.k_pre, layer.k_post)


def test_biased_projections_are_captured_with_their_bias() -> None:
    target = random_model("qwen2")
    attention: Any = target.attentions[0]
    assert attention.k_proj.bias.abs().max() > 0
    layer = capture(target, TOKENS)[0]
    hidden = target.embed(torch.tensor([TOKENS]), 0)
    normed = target._layers[0].input_layernorm(hidden)  # type: ignore[operator]
    expected = attention.k_proj(normed)[0].view(len(TOKENS), target.n_kv_heads, target.head_dim).transpose(0, 1)
    assert relative(layer.k_pre, expected) < 1e-9


@pytest.mark.parametrize("bug", ["window off by one", "before for after", "h % KVH", "future keys"])
def test_planted_bugs_do_not_pass_for_a_capture(bug: str) -> None:
    target = random_model("gemma3_text" if bug == "window off by one" else "llama")
    layer, window = capture(target, TOKENS)[0], target.windows[0]
    if bug == "window off by one":
        assert window == WINDOW
        wrong = attend(layer, WINDOW + 1)
    elif bug == "before for after":
        wrong = attend(LayerActivations(**layer.tensors() | {"k_post": layer.k_pre}, scaling=layer.scaling), window)
    elif bug == "h % KVH":
        wrong = attend(layer, window, group="h % KVH")
    else:
        flipped = {name: tensor.flip(1) for name, tensor in layer.tensors().items()}
        wrong = attend(LayerActivations(**flipped, scaling=layer.scaling), window).flip(0)
    assert relative(wrong, layer.output) > 1e-3


def test_nothing_is_left_behind_even_after_an_error() -> None:
    target = random_model("llama")
    before = set(ALL_ATTENTION_FUNCTIONS)
    with pytest.raises(IndexError):
        capture(target, [10**6])
    assert target.model.config._attn_implementation == "sdpa"
    assert set(ALL_ATTENTION_FUNCTIONS) == before
    assert not target.attentions[0].k_proj._forward_hooks  # type: ignore[union-attr]


def test_a_text_longer_than_the_model_is_refused_with_the_valid_length() -> None:
    target = random_model("llama")
    with pytest.raises(BreakevenError, match=f"1..{target.max_context_tokens}"):
        capture(target, [1] * (target.max_context_tokens + 1))
