"""Seeded random models of every supported architecture, with a small byte-level tokenizer.

They stand in for real models in tests: their outputs mean nothing, but every trap of the architecture is there
(biased projections, grouped heads, sliding windows, learned positions, norms that are not one), the logits are not
flat, and an early exit agrees with the whole model sometimes, neither never nor always.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from breakeven.config import RandomSpec
from breakeven.errors import ConfigError

END_OF_TEXT, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"

# A few merges of common English pairs, so that a token is not always one byte. \u0120 is a space in byte-level BPE.
# fmt: off
MERGES = [
    ("\u0120", "t"), ("h", "e"), ("i", "n"), ("e", "r"), ("\u0120", "a"), ("\u0120t", "he"), ("o", "n"), ("r", "e"),
    ("\u0120", "s"), ("a", "t"), ("e", "n"), ("o", "u"), ("\u0120", "w"), ("i", "s"), ("\u0120", "c"), ("n", "d"),
    ("\u0120", "b"), ("i", "t"), ("\u0120", "o"), ("in", "g"), ("e", "s"), ("o", "r"),
]
# fmt: on

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

# Standard deviations relative to 1/sqrt(fan_in), which keeps the scale of what a layer puts out independent of its
# width. Logits of standard deviation 2 give distributions like those of a model at temperature 1, not flat ones.
# Branches weaker than the residual stream let a middle layer agree with the last one sometimes.
_GAIN = {"head": 2.0, "branch_out": 0.7, "other": 2.0}
_BIAS_STD = 0.3
_NORM_STD = 0.1
_BRANCH_OUT = ("o_proj", "down_proj", "c_proj")


def build(spec: RandomSpec, *, pad_vocab_to_multiple_of: int = 1) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    """Build a model and its tokenizer from a shape and a seed; the global random state is left as it was.

    Args:
        spec: architecture, shape and seed.
        pad_vocab_to_multiple_of: extra rows of the embedding and of the head that no token owns, as real models
            have them for the sake of alignment; their logits are as large as any other's.

    Returns:
        The model in float32 and evaluation mode on the CPU, and the tokenizer.

    Raises:
        ConfigError: the architecture is unknown, or the shape is impossible for it.
    """
    tokenizer = byte_tokenizer(spec.max_context_tokens)
    rows = -(-len(tokenizer) // pad_vocab_to_multiple_of) * pad_vocab_to_multiple_of
    # Transformers draws weights from the global generator on construction; they are overwritten below.
    with torch.random.fork_rng(devices=[]):
        model: Any = AutoModelForCausalLM.from_config(model_config(spec, rows, tokenizer))
    _fill(model, spec.seed)
    # The turn's end stops a chat model's generation, the end of text a base model's: keep both, as instruct models do.
    model.generation_config.eos_token_id = [
        tokenizer.eos_token_id,
        tokenizer.convert_tokens_to_ids(END_OF_TEXT),
    ]
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    ready: PreTrainedModel = model.eval()
    return ready, tokenizer


def byte_tokenizer(max_context_tokens: int) -> PreTrainedTokenizerFast:
    """Return a byte-level BPE tokenizer: 3 special tokens, 256 bytes, a few merges, a ChatML template."""
    tokens = [
        END_OF_TEXT,
        TURN_START,
        TURN_END,
        *sorted(pre_tokenizers.ByteLevel.alphabet()),
    ]
    tokens += [left + right for left, right in MERGES]
    core = Tokenizer(models.BPE(vocab={token: index for index, token in enumerate(tokens)}, merges=MERGES))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens([AddedToken(token, special=True) for token in (END_OF_TEXT, TURN_START, TURN_END)])
    fast: Any = PreTrainedTokenizerFast
    tokenizer: PreTrainedTokenizerFast = fast(
        tokenizer_object=core,
        bos_token=TURN_START,
        eos_token=TURN_END,
        unk_token=END_OF_TEXT,
        pad_token=END_OF_TEXT,
        chat_template=CHAT_TEMPLATE,
        model_max_length=max_context_tokens,
        clean_up_tokenization_spaces=False,
    )
    return tokenizer


def model_config(spec: RandomSpec, vocab_size: int, tokenizer: PreTrainedTokenizerFast) -> PreTrainedConfig:
    """Return the Transformers configuration of a shape.

    Raises:
        ConfigError: the architecture is unknown, or the shape is impossible for it.
    """
    shapes: dict[str, Callable[[RandomSpec], dict[str, Any]]] = {
        "llama": _rotary_shape,
        "qwen2": _qwen2_shape,
        "qwen3": _rotary_shape,
        "gemma3_text": _gemma3_shape,
        "gpt2": _gpt2_shape,
    }
    if spec.architecture not in shapes:
        raise ConfigError(f"random architecture {spec.architecture!r} is unknown. Valid: {', '.join(shapes)}.")
    config: PreTrainedConfig = AutoConfig.for_model(
        spec.architecture,
        vocab_size=vocab_size,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        # A tied head would make every random model repeat its last token.
        tie_word_embeddings=False,
        **shapes[spec.architecture](spec),
    )
    config.architectures = [_ARCHITECTURE_CLASSES[spec.architecture]]
    return config


_ARCHITECTURE_CLASSES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "gemma3_text": "Gemma3ForCausalLM",
    "gpt2": "GPT2LMHeadModel",
}


def _rotary_shape(spec: RandomSpec) -> dict[str, Any]:
    return {
        "hidden_size": spec.hidden,
        "intermediate_size": 2 * spec.hidden,
        "num_hidden_layers": spec.layers,
        "num_attention_heads": spec.query_heads,
        "num_key_value_heads": spec.kv_heads,
        "head_dim": spec.head_dim,
        "max_position_embeddings": spec.max_context_tokens,
    }


def _qwen2_shape(spec: RandomSpec) -> dict[str, Any]:
    shape = _rotary_shape(spec)
    # Transformers' Qwen2 reads an explicit head_dim, real checkpoints leave it out: then it is hidden / heads.
    if spec.head_dim * spec.query_heads != spec.hidden:
        raise ConfigError(f"qwen2: head_dim {spec.head_dim} x query_heads {spec.query_heads} must be {spec.hidden}.")
    del shape["head_dim"]
    return shape


def _gemma3_shape(spec: RandomSpec) -> dict[str, Any]:
    """Local layers with a sliding window; every third layer and the last one global, so that both kinds are there."""
    kinds = ["full_attention" if index % 3 == 2 else "sliding_attention" for index in range(spec.layers)]
    kinds[-1] = "full_attention"
    return _rotary_shape(spec) | {
        "query_pre_attn_scalar": spec.head_dim,
        "sliding_window": spec.sliding_window or 16,
        "layer_types": kinds,
    }


def _gpt2_shape(spec: RandomSpec) -> dict[str, Any]:
    if spec.head_dim * spec.query_heads != spec.hidden or spec.kv_heads != spec.query_heads:
        raise ConfigError(
            f"gpt2 has no grouped heads: kv_heads must be {spec.query_heads} and head_dim {spec.hidden}"
            f"/{spec.query_heads}; it is {spec.kv_heads} and {spec.head_dim}."
        )
    return {
        "n_embd": spec.hidden,
        "n_layer": spec.layers,
        "n_head": spec.query_heads,
        "n_positions": spec.max_context_tokens,
    }


@torch.no_grad()
def _fill(model: Any, seed: int) -> None:
    """Overwrite every parameter; each has a generator of its own, so a name's values do not depend on the others."""
    zero_centred = model.config.model_type == "gemma3_text"  # its norms multiply by 1 + weight
    input_embeddings = model.get_input_embeddings().weight
    head = model.get_output_embeddings().weight
    for name, parameter in model.named_parameters():
        digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)
        noise = torch.randn(parameter.shape, generator=generator)
        if parameter is head:
            noise *= _GAIN["head"] / math.sqrt(parameter.shape[1])
        elif parameter is input_embeddings or "wpe" in name:
            # Gemma multiplies its embeddings by sqrt(hidden); the others feed them in as they are.
            noise *= 1 / math.sqrt(parameter.shape[1]) if zero_centred else 1.0
        elif parameter.ndim == 1:
            noise = _vector(name, noise, zero_centred)
        else:
            gain = _GAIN["branch_out" if any(part in name for part in _BRANCH_OUT) else "other"]
            # GPT-2 stores its matrices as [in, out], the others as [out, in].
            fan_in = parameter.shape[0] if model.config.model_type == "gpt2" else parameter.shape[1]
            noise *= gain / math.sqrt(fan_in)
        parameter.copy_(noise.to(parameter.dtype))


def _vector(name: str, noise: Tensor, zero_centred: bool) -> Tensor:
    """Scale a bias, or a norm's weight: near one (near zero where the norm adds one), never exactly."""
    is_norm_weight = name.endswith("weight")
    if "ln_" in name and not is_norm_weight:
        return noise * _NORM_STD  # a larger one adds the same to every token's logits, and one token wins everywhere
    if not is_norm_weight:
        return noise * _BIAS_STD
    return noise * _NORM_STD + (0.0 if zero_centred else 1.0)
