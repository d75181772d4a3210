"""A converted GGUF file is the same model: the same logits, tokens, end tokens and chat template."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from breakeven.errors import BreakevenError, DownloadError
from breakeven.models import gguf_convert
from helpers.model_files import quiet, tiny_model, write_gguf


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf")


@pytest.fixture(scope="module")
def converted(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    ready = tmp_path_factory.mktemp("ready")
    assert gguf_convert.convert(source, ready, 0, quiet) == "F32"
    return ready


def test_logits_are_those_of_the_original_model(converted: Path) -> None:
    original, tokenizer = tiny_model()
    again = AutoModelForCausalLM.from_pretrained(converted, local_files_only=True, dtype=torch.float32).eval()
    tokens = torch.randint(0, len(tokenizer), (1, 40), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        torch.testing.assert_close(again(tokens).logits, original(tokens).logits, rtol=1e-4, atol=1e-4)


def test_planted_bug_unpermuted_heads_would_show(converted: Path) -> None:
    """The comparison above can fail: rows of q in GGUF's order give other logits."""
    original, tokenizer = tiny_model()
    again = AutoModelForCausalLM.from_pretrained(converted, local_files_only=True, dtype=torch.float32).eval()
    weight = again.model.layers[0].self_attn.q_proj.weight
    with torch.inference_mode():
        weight.copy_(weight.reshape(4, 2, 4, -1).swapaxes(1, 2).reshape(weight.shape))
        tokens = torch.arange(3, 43)[None]
        assert (again(tokens).logits - original(tokens).logits).abs().max() > 0.1
    assert len(tokenizer) > 43


def test_text_becomes_the_same_tokens(converted: Path) -> None:
    _, tokenizer = tiny_model()
    again = AutoTokenizer.from_pretrained(converted, local_files_only=True)
    for text in ("The thing in there.", "  two  spaces\n\ttab", "naïve café 😀 日本", "<|im_start|>user\nhi<|im_end|>"):
        assert again.encode(text, add_special_tokens=False) == tokenizer.encode(text, add_special_tokens=False)
        assert again.decode(again.encode(text, add_special_tokens=False)) == text
    message = [{"role": "user", "content": "hi"}]
    rendered = [t.apply_chat_template(message, tokenize=False, add_generation_prompt=True) for t in (again, tokenizer)]
    assert rendered[0] == rendered[1]


def test_generation_stops_where_the_file_says(converted: Path) -> None:
    _, tokenizer = tiny_model()
    generation = GenerationConfig.from_pretrained(converted)
    assert generation.eos_token_id == tokenizer.eos_token_id
    assert AutoTokenizer.from_pretrained(converted).eos_token_id == tokenizer.eos_token_id


def test_the_folder_holds_data_only_and_no_trace_of_gguf(converted: Path) -> None:
    names = {path.name for path in converted.iterdir()}
    assert {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json"} <= names
    assert {path.suffix for path in converted.iterdir()} <= {".json", ".safetensors", ".jinja"}
    text = (converted / "config.json").read_text()
    assert "quantization_config" not in text
    assert ".gguf" not in text


def test_a_truncated_file_is_refused(source: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(source.read_bytes()[:-500])
    with pytest.raises(DownloadError, match="truncated|damaged"):
        gguf_convert.convert(cut, tmp_path / "ready", 0, quiet)
    cut.write_bytes(source.read_bytes()[:200])
    with pytest.raises(DownloadError, match="truncated|damaged"):
        gguf_convert.convert(cut, tmp_path / "ready", 0, quiet)


def test_a_pickle_called_gguf_is_refused(tmp_path: Path) -> None:
    fake = tmp_path / "model.gguf"
    fake.write_bytes(b"\x80\x04\x95" + bytes(1000))
    with pytest.raises(DownloadError, match="not a GGUF file"):
        gguf_convert.convert(fake, tmp_path / "ready", 0, quiet)


def test_too_little_memory_is_refused_before_anything_is_loaded(source: Path, tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    with pytest.raises(BreakevenError, match=r"needs about .* GiB of memory.*max_ram_gib"):
        gguf_convert.convert(source, ready, 0.001, quiet)
    assert not any(ready.iterdir())
