"""Model files of the tests, made on the spot: a tiny Llama as GGUF, wheels that carry it, a Transformers folder."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from tokenizers.pre_tokenizers import ByteLevel
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from breakeven.config import ModelConfig, RandomSpec, SourceConfig, WheelPart
from breakeven.models import random_model

TINY = RandomSpec("llama", 3, 2, 32, 4, 2, 8, 64)


def quiet(line: str) -> None:
    """Take a progress line and say nothing."""


def tiny_model(seed: int = 3) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    """Return a two-layer Llama with grouped heads and its byte-level tokenizer."""
    return random_model.build(RandomSpec(**{**vars(TINY), "seed": seed}))


def random_config(seed: int = 3, name: str = "tiny") -> ModelConfig:
    """Return the configuration of a tiny random model."""
    spec = RandomSpec(**{**vars(TINY), "seed": seed})
    return ModelConfig(name=name, source=SourceConfig(kind="random", random=spec), license="Apache-2.0")


def local_config(path: Path, name: str = "mine") -> ModelConfig:
    """Return the configuration of a model in a folder or a GGUF file."""
    return ModelConfig(name=name, source=SourceConfig(kind="local", path=str(path)), license="MIT")


def save_folder(folder: Path, seed: int = 3) -> Path:
    """Save the tiny model as a Transformers folder."""
    model, tokenizer = tiny_model(seed)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def write_gguf(path: Path, seed: int = 3) -> Path:
    """Write the tiny model as GGUF the way llama.cpp's converter does: renamed tensors, permuted rows of q and k."""
    model, tokenizer = tiny_model(seed)
    config: Any = model.config
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("tiny")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(config.vocab_size)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    _write_tokenizer(writer, tokenizer)
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for name, tensor in model.state_dict().items():
        weights = tensor.numpy()
        for part, n_heads in heads.items():
            if part in name:
                weights = _permute(weights, n_heads)
        writer.add_tensor(_gguf_name(name), np.ascontiguousarray(weights))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _permute(weights: np.ndarray, n_heads: int) -> np.ndarray:
    """Interleave the two rotary halves of each head, as GGUF stores Llama's q and k."""
    halves = weights.reshape(n_heads, 2, weights.shape[0] // n_heads // 2, *weights.shape[1:])
    return halves.swapaxes(1, 2).reshape(weights.shape)


def _gguf_name(name: str) -> str:
    renames = {
        "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output", "model.layers": "blk",
        "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down", "post_attention_layernorm": "ffn_norm", "input_layernorm": "attn_norm",
    }  # fmt: skip
    for theirs, ours in renames.items():
        name = name.replace(theirs, ours)
    return name


def _write_tokenizer(writer: gguf.GGUFWriter, tokenizer: PreTrainedTokenizerFast) -> None:
    by_id = {index: token for token, index in tokenizer.get_vocab().items()}
    tokens = [by_id[index] for index in range(len(by_id))]
    alphabet = set(ByteLevel.alphabet())
    normal, control = gguf.TokenType.NORMAL, gguf.TokenType.CONTROL
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([normal if set(token) <= alphabet and "<|" not in token else control for token in tokens])
    writer.add_token_merges([f"{left} {right}" for left, right in random_model.MERGES])
    writer.add_bos_token_id(tokenizer.bos_token_id)
    writer.add_eos_token_id(tokenizer.eos_token_id)
    writer.add_pad_token_id(tokenizer.pad_token_id)
    writer.add_chat_template(random_model.CHAT_TEMPLATE)


def write_wheel(folder: Path, name: str, members: dict[str, bytes], *, version: str = "1.0") -> WheelPart:
    """Write a minimal wheel that pip accepts; return its pin, for the first member."""
    folder.mkdir(parents=True, exist_ok=True)
    module = name.replace("-", "_")
    info = f"{module}-{version}.dist-info"
    path = folder / f"{module}-{version}-py3-none-any.whl"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    tag = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    # A wheel whose import would be noticed: nothing of it may ever run.
    entries: dict[str, bytes] = {f"{module}/__init__.py": b"raise SystemExit('a wheel was imported')\n"}
    entries |= {f"{module}/{member}": content for member, content in members.items()}
    entries |= {f"{info}/METADATA": metadata.encode(), f"{info}/WHEEL": tag.encode()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for entry, content in entries.items():
            archive.writestr(entry, content)
        archive.writestr(f"{info}/RECORD", "".join(f"{entry},,\n" for entry in [*entries, f"{info}/RECORD"]))
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return WheelPart(requirement=f"{name}=={version}", sha256=digest, member=f"{module}/{next(iter(members))}")


def wheel_config(*parts: WheelPart, name: str = "packed") -> ModelConfig:
    """Return the configuration of a model in wheels."""
    return ModelConfig(name=name, source=SourceConfig(kind="wheel", wheels=list(parts)), license="MIT")
