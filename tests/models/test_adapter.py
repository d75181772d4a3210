"""The layer-by-layer forward pass against the whole Transformers module, for every architecture."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from breakeven.errors import BreakevenError
from breakeven.models.adapter import LayeredModel
from helpers.models import ARCHITECTURES, CONTEXT, WINDOW, random_model, small_llama

TOLERANCE = {torch.float64: 1e-9, torch.float32: 2e-4}
LENGTH = 5 * WINDOW  # several sliding windows


@torch.inference_mode()
def whole_module_logits(target: LayeredModel, tokens: Tensor) -> Tensor:
    """Logits of Transformers' own forward pass: all tokens at once, its own masks, no cache."""
    return target.model(tokens, use_cache=False).logits[..., : target.vocab_size]


def random_tokens(target: LayeredModel, n: int, seed: int = 0) -> Tensor:
    return torch.randint(0, target.vocab_size, (1, n), generator=torch.Generator().manual_seed(seed))


def in_chunks(target: LayeredModel, tokens: Tensor, sizes: list[int]) -> Tensor:
    assert sum(sizes) == tokens.shape[1]
    cache = target.new_cache(tokens.shape[1])
    return torch.cat([target.forward(part, cache) for part in tokens.split(sizes, dim=1)], dim=1)


@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_whole_prompt_equals_transformers(architecture: str, dtype: torch.dtype) -> None:
    target = random_model(architecture, dtype)
    tokens = random_tokens(target, LENGTH)
    logits = target.forward(tokens, target.new_cache(LENGTH))
    assert logits.shape == (1, LENGTH, target.vocab_size)
    assert logits.dtype == dtype
    torch.testing.assert_close(logits, whole_module_logits(target, tokens), rtol=0, atol=TOLERANCE[dtype])


# Prompts below, at and above the sliding window, then steps of 1, 2 and 5 tokens; and no prompt at all.
@pytest.mark.parametrize("prompt", [1, WINDOW - 1, WINDOW, WINDOW + 1, 3 * WINDOW])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_chunks_behind_the_cache_equal_transformers(architecture: str, prompt: int) -> None:
    target = random_model(architecture)
    sizes = [prompt, 1, 2, 5, 1, 1, 5, 2]
    tokens = random_tokens(target, sum(sizes), seed=prompt)
    torch.testing.assert_close(
        in_chunks(target, tokens, sizes), whole_module_logits(target, tokens), rtol=0, atol=TOLERANCE[torch.float64]
    )


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_chunks_in_float32(architecture: str) -> None:
    target = random_model(architecture, torch.float32)
    tokens = random_tokens(target, LENGTH)
    chunked = in_chunks(target, tokens, [WINDOW, 1, 2, 5, *[1] * (LENGTH - WINDOW - 8)])
    torch.testing.assert_close(chunked, whole_module_logits(target, tokens), rtol=0, atol=TOLERANCE[torch.float32])


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_crop_then_continue_equals_never_appended_30312_47447(architecture: str) -> None:
    target = random_model(architecture)
    tokens = random_tokens(target, LENGTH)
    kept, other = 2 * WINDOW + 3, random_tokens(target, 6, seed=9)
    cache = target.new_cache(LENGTH)
    target.forward(tokens[:, :kept], cache)
    target.forward(other, cache)  # a draft that is rejected whole, then one that is rejected in part
    cache.crop(kept)
    target.forward(torch.cat([tokens[:, kept : kept + 2], other[:, :3]], dim=1), cache)
    cache.crop(kept + 2)
    rest = target.forward(tokens[:, kept + 2 :], cache)
    expected = whole_module_logits(target, tokens)[:, kept + 2 :]
    torch.testing.assert_close(rest, expected, rtol=0, atol=TOLERANCE[torch.float64])


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_first_layers_ahead_then_the_rest_equals_all_at_once(architecture: str) -> None:
    # Early exit: layers 0..1 see token by token, the others the same tokens in one pass afterwards.
    target = random_model(architecture)
    tokens = random_tokens(target, LENGTH)
    start, cache = LENGTH - 5, target.new_cache(LENGTH)
    with torch.inference_mode():
        target.forward(tokens[:, :start], cache)
        states = [
            target.run_layers(target.embed(tokens[:, i : i + 1], i), i, 0, 2, cache) for i in range(start, LENGTH)
        ]
        assert cache.lengths == [LENGTH, LENGTH, start, start]
        assert cache.length == start
        hidden = target.run_layers(torch.cat(states, dim=1), start, 2, target.n_layers, cache)
        logits = target.head(hidden)
    expected = whole_module_logits(target, tokens)[:, start:]
    torch.testing.assert_close(logits, expected, rtol=0, atol=TOLERANCE[torch.float64])


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_whole_prompt_equals_transformers_eager_attention(architecture: str) -> None:
    # Another attention kernel and another kind of mask; its softmax is float32 even in a float64 model.
    target = random_model(architecture)
    eager = copy.deepcopy(target.model)
    eager.set_attn_implementation("eager")
    tokens = random_tokens(target, LENGTH)
    chunked = in_chunks(target, tokens, [WINDOW + 3, *[5] * 5, 4])
    with torch.inference_mode():
        torch.testing.assert_close(chunked, eager(tokens, use_cache=False).logits, rtol=0, atol=1e-4)


def test_gemma_windows_matter_at_these_lengths() -> None:
    # Guards the tests above: with the window ignored their logits would have to differ.
    target = random_model("gemma3_text")
    assert WINDOW in target.windows
    assert None in target.windows
    tokens = random_tokens(target, LENGTH)
    wide = LayeredModel(target.model, target.tokenizer, "no-window")
    wide.windows = [None] * target.n_layers
    difference = wide.forward(tokens, wide.new_cache(LENGTH)) - whole_module_logits(target, tokens)
    assert difference[:, :WINDOW].abs().max() < 1e-9
    assert difference[:, WINDOW:].abs().max() > 1e-3


def test_layers_that_are_out_of_step_are_refused() -> None:
    target = random_model("llama")
    cache = target.new_cache(16)
    target.forward(random_tokens(target, 4), cache)
    cache.lengths[1] = 3
    with pytest.raises(ValueError, match="holds 3 tokens"):
        target.forward(random_tokens(target, 2), cache)


def test_last_only_is_the_last_row() -> None:
    target = random_model("qwen2")
    tokens = random_tokens(target, 12)
    last = target.forward(tokens, target.new_cache(12), last_only=True)
    assert last.shape == (1, 1, target.vocab_size)
    torch.testing.assert_close(last, target.forward(tokens, target.new_cache(12))[:, -1:], rtol=0, atol=1e-12)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_padded_vocabulary_is_sliced_off_10913(architecture: str) -> None:
    padded = random_model(architecture, pad=64)
    assert padded.model.config.vocab_size == 320
    assert padded.vocab_size == len(padded.tokenizer) == 281
    tokens = random_tokens(padded, CONTEXT)
    logits = padded.forward(tokens, padded.new_cache(CONTEXT))
    assert logits.shape[-1] == 281
    whole = padded.model(tokens).logits
    # Padding rows would win somewhere: slicing is not a formality here.
    assert (whole.argmax(-1) >= 281).any()


def test_final_logit_softcapping_is_applied() -> None:
    model = copy.deepcopy(random_model("gemma3_text").model)
    model.config.final_logit_softcapping = 1.5
    capped = LayeredModel(model, random_model("gemma3_text").tokenizer, "capped")
    tokens = random_tokens(capped, LENGTH)
    logits = capped.forward(tokens, capped.new_cache(LENGTH))
    assert logits.abs().max() < 1.5
    torch.testing.assert_close(logits, whole_module_logits(capped, tokens), rtol=0, atol=1e-9)


def test_unsupported_architecture_is_refused_by_name() -> None:
    config = AutoConfig.for_model(
        "gpt_neox", vocab_size=8, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8
    )
    model = AutoModelForCausalLM.from_config(config)
    with pytest.raises(BreakevenError, match=r"'gpt_neox'.*Supported: llama, qwen2, qwen3, gemma3_text, gpt2"):
        LayeredModel(model, small_llama(3).tokenizer, "neox")


def test_eager_attention_is_refused_since_it_would_see_the_future() -> None:
    model = copy.deepcopy(random_model("llama").model)
    model.set_attn_implementation("eager")
    with pytest.raises(BreakevenError, match="attn_implementation"):
        LayeredModel(model, random_model("llama").tokenizer, "eager")


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_shapes_and_bytes(architecture: str) -> None:
    target = random_model(architecture)
    kv_heads = {"gpt2": 4, "gemma3_text": 1}.get(architecture, 2)
    assert (target.n_layers, target.n_query_heads, target.n_kv_heads, target.head_dim) == (4, 4, kv_heads, 8)
    assert target.max_context_tokens == CONTEXT
    assert target.kv_bytes_per_token == 2 * 4 * kv_heads * 8 * 8
    assert target.new_cache(10).nbytes == 10 * target.kv_bytes_per_token
    assert target.nbytes == 8 * sum(p.numel() for p in target.model.parameters())


def test_tied_weights_are_counted_once() -> None:
    config = AutoConfig.for_model(
        "llama", vocab_size=50, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1,
        num_key_value_heads=1, tie_word_embeddings=True,
    )  # fmt: skip
    tied = LayeredModel(AutoModelForCausalLM.from_config(config), small_llama(3).tokenizer, "tied")
    # embedding 50*8, attention 4*8*8, MLP 3*8*8, three norms of 8
    assert tied.nbytes == 4 * (50 * 8 + 4 * 64 + 3 * 64 + 3 * 8)
