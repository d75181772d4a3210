"""Random models have every trap of their architecture, and are the same for the same seed."""

from __future__ import annotations

import dataclasses
import hashlib
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from breakeven.config import ARCHITECTURES, RandomSpec
from breakeven.errors import ConfigError
from breakeven.models import sources, store
from breakeven.models.sources import random
from helpers.model_files import quiet, random_config


def spec(architecture: str, seed: int = 7, **changes: Any) -> RandomSpec:
    kv_heads = 4 if architecture == "gpt2" else 2
    shape = RandomSpec(architecture, seed, 4, 32, 4, kv_heads, 8, 128, 8)
    return dataclasses.replace(shape, **changes)


def digest(model: Any) -> str:
    content = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        content.update(name.encode() + tensor.numpy().tobytes())
    return content.hexdigest()


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_seed_decides_the_weights_and_the_global_state_nothing(architecture: str) -> None:
    torch.manual_seed(1)
    before = torch.random.get_rng_state()
    first = random.build(spec(architecture))[0]
    assert torch.equal(before, torch.random.get_rng_state()), "the global generator moved"
    torch.manual_seed(2)
    assert digest(random.build(spec(architecture))[0]) == digest(first)
    assert digest(random.build(spec(architecture, seed=8))[0]) != digest(first)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_logits_are_neither_flat_nor_certain_and_greedy_text_varies(architecture: str) -> None:
    model, tokenizer = random.build(spec(architecture))
    tokens = torch.arange(3, 67)[None]
    with torch.inference_mode():
        probabilities = model(tokens).logits[0].softmax(-1)
        written: Tensor = model.generate(tokens, max_new_tokens=48, min_new_tokens=48, do_sample=False)
    assert 0.05 < probabilities.max(-1).values.mean() < 0.6
    assert len(set(written[0, 64:].tolist())) > 8
    assert written.max() < len(tokenizer)


def test_biased_projections_have_biases() -> None:
    model: Any = random.build(spec("qwen2"))[0]
    for layer in model.model.layers:
        for projection in (layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj):
            assert projection.bias.abs().min() > 0
            assert projection.bias.std() > 0.1


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_no_norm_is_the_identity(architecture: str) -> None:
    model: Any = random.build(spec(architecture))[0]
    neutral = 0.0 if architecture == "gemma3_text" else 1.0
    norms = [p for name, p in model.named_parameters() if ("norm" in name or "ln_" in name) and "weight" in name]
    assert len(norms) >= 9
    for weight in norms:
        assert (weight - neutral).abs().max() > 0.01
        assert (weight - neutral).abs().mean() < 0.5


def test_gemma_mixes_local_and_global_layers() -> None:
    for layers in (2, 4, 6):
        config: Any = random.build(spec("gemma3_text", layers=layers))[0].config
        assert set(config.layer_types) == {"sliding_attention", "full_attention"}
        assert config.sliding_window == 8


def test_padding_rows_are_as_likely_as_tokens_so_that_forgetting_them_shows() -> None:
    model, tokenizer = random.build(spec("llama"), pad_vocab_to_multiple_of=64)
    assert (model.config.vocab_size, len(tokenizer)) == (320, 281)
    with torch.inference_mode():
        top = model(torch.arange(3, 103)[None]).logits[0].argmax(-1)
    assert (top >= len(tokenizer)).any()


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_saved_and_loaded_it_is_the_same_model(architecture: str, tmp_path: Path) -> None:
    model, tokenizer = random.build(spec(architecture))
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path, local_files_only=True).eval()
    assert digest(again) == digest(model)
    loaded = AutoTokenizer.from_pretrained(tmp_path, local_files_only=True)
    message = [{"role": "user", "content": "naïve 😀 <|im_end|> the other"}]
    encoded = [t.apply_chat_template(message, add_generation_prompt=True)["input_ids"] for t in (tokenizer, loaded)]
    assert encoded[0] == encoded[1]
    assert again.generation_config.eos_token_id == [2, 0]


@pytest.mark.parametrize(
    ("architecture", "changes", "message"),
    [
        ("gpt2", {"kv_heads": 2}, "gpt2 has no grouped heads"),
        ("gpt2", {"head_dim": 16}, "gpt2 has no grouped heads"),
        ("qwen2", {"head_dim": 16}, "must be 32"),
        ("mamba", {}, "Valid: llama, qwen2, qwen3, gemma3_text, gpt2"),
    ],
)
def test_an_impossible_shape_is_refused(architecture: str, changes: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        random.build(spec(architecture, **changes))


def test_it_is_stored_like_any_other_model(tmp_path: Path) -> None:
    folder = sources.fetch(random_config(), tmp_path / "store", quiet)
    manifest = store.verify(folder)
    shape = [manifest[key] for key in ("n_layers", "n_query_heads", "n_kv_heads", "head_dim", "hidden", "vocab")]
    assert shape == [2, 4, 2, 8, 32, 281]
    # embedding, head, final norm; two layers of q, k, v, o, three of the MLP, two norms
    assert manifest["n_parameters"] == 2 * 281 * 32 + 32 + 2 * (2 * 32 * 32 + 2 * 32 * 16 + 3 * 32 * 64 + 2 * 32)
    assert manifest["dequantized_from"] is None
    other = sources.fetch(random_config(seed=4), tmp_path / "store", quiet)
    assert other != folder
