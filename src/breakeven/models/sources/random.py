"""Seeded random models, for tests; `breakeven.models.random_model` builds them."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

from breakeven.config import RandomSpec, SourceConfig
from breakeven.models.store import Progress

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

_RECIPE = 1  # raise it when `build` makes other weights of the same specification


def identity(source: SourceConfig, store: Path) -> dict[str, Any]:
    """Return what pins the content: the shape and the seed."""
    assert source.random is not None
    return {"random": dataclasses.asdict(source.random), "recipe": _RECIPE}


def prepare(source: SourceConfig, partial: Path, max_ram_gib: float, progress: Progress) -> dict[str, Any]:
    """Build the model and save it as float32 safetensors; see `breakeven.models.sources`."""
    assert source.random is not None
    progress(f"building a random {source.random.architecture} with {source.random.layers} layers")
    model, tokenizer = build(source.random)
    model.save_pretrained(partial / "ready")
    tokenizer.save_pretrained(partial / "ready")
    return {}


def build(spec: RandomSpec, *, pad_vocab_to_multiple_of: int = 1) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    """Build a model and its tokenizer; see `breakeven.models.random_model.build`."""
    # Imported here: a download stage with nothing to build must not wait for torch.
    from breakeven.models import random_model

    return random_model.build(spec, pad_vocab_to_multiple_of=pad_vocab_to_multiple_of)


def byte_tokenizer(max_context_tokens: int) -> PreTrainedTokenizerFast:
    """Return the tokenizer of all random models; see `breakeven.models.random_model.byte_tokenizer`."""
    from breakeven.models import random_model

    return random_model.byte_tokenizer(max_context_tokens)
