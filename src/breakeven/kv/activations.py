"""The folder of captured activations: one safetensors file a layer and meta.json; whole or not there at all.

Each layer holds q_pre, q_post [texts, query heads, tokens, head_dim] and k_pre, k_post, v [texts, KV heads, tokens,
head_dim]: queries and keys before and after rotary embedding (the same where a model has none), and values.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypedDict, cast

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from breakeven import io
from breakeven.errors import BreakevenError

QUERIES = ("q_pre", "q_post")
KEYS_VALUES = ("k_pre", "k_post", "v")
_META = "meta.json"


class Meta(TypedDict):
    """meta.json: what the tensors are."""

    model: str
    dtype: str  # of the captured forward pass and of the files
    n_layers: int
    n_query_heads: int
    n_kv_heads: int
    head_dim: int
    scaling: list[float]  # factor of q.k, per layer
    windows: list[int | None]  # sliding window in tokens, the query's own included; null: all earlier tokens
    text_ids: list[str]
    token_ids: list[list[int]]  # all texts have the same length


def n_tokens(meta: Meta) -> int:
    """Tokens of each text."""
    return len(meta["token_ids"][0])


def save(folder: str | Path, meta: Mapping[str, Any], layers: Iterable[Mapping[str, Tensor]]) -> None:
    """Write all layers beside the target, then put the whole folder in its place.

    Args:
        folder: the target; one that exists is replaced.
        meta: see `Meta`.
        layers: the tensors of layer 0, 1, ...; taken one at a time, so that a generator need not hold them all.

    Raises:
        BreakevenError: tensors and meta do not agree, or the folder cannot be written; what was there stays.
    """
    target = Path(folder)
    checked = _checked(meta)
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}.", suffix=".tmp"))
    try:
        written = 0
        for index, tensors in enumerate(layers):
            _check_tensors(checked, index, tensors)
            # Copies: before and after rotary embedding may be one tensor (GPT-2), which safetensors refuses.
            copies = {name: tensor.clone(memory_format=torch.contiguous_format) for name, tensor in tensors.items()}
            data = safetensors.torch.save(copies)
            (temporary / _layer_name(index)).write_bytes(data)
            written += 1
        if written != checked["n_layers"]:
            raise BreakevenError(f"{written} layers were captured of a model with {checked['n_layers']}.")
        io.write_json(temporary / _META, dict(checked))
        # mkdtemp makes folders private; results are ordinary folders.
        temporary.chmod(0o755)
        _replace(temporary, target)
    except OSError as error:
        reason = f"cannot write {target}: {error.strerror or error}. Free some disk space or fix the permissions"
        raise BreakevenError(f"{reason}; nothing was left half-written.") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def load_meta(folder: str | Path) -> Meta:
    """Read meta.json.

    Raises:
        BreakevenError: it is missing or damaged.
    """
    meta = io.read_json(Path(folder) / _META)
    if not isinstance(meta, dict):
        raise BreakevenError(f"{folder}/{_META} holds no mapping. Delete {folder} and run `dvc repro`.")
    return _checked(meta)


def load_layer(folder: str | Path, layer: int) -> dict[str, Tensor]:
    """Read the tensors of one layer.

    Args:
        folder: as given to `save`.
        layer: index, from 0.

    Raises:
        BreakevenError: the file is missing or damaged.
    """
    path = Path(folder) / _layer_name(layer)
    try:
        tensors: dict[str, Tensor] = safetensors.torch.load_file(path)
    except FileNotFoundError as error:
        raise BreakevenError(f"{path} is missing. Run `dvc repro` to make it.") from error
    except (OSError, safetensors.SafetensorError) as error:
        raise BreakevenError(f"{path} cannot be read ({error}). Delete {folder} and run `dvc repro`.") from error
    missing = sorted({*QUERIES, *KEYS_VALUES} - set(tensors))
    if missing:
        raise BreakevenError(f"{path} has no {', '.join(missing)}. Delete {folder} and run `dvc repro`.")
    return tensors


def _layer_name(layer: int) -> str:
    return f"layer_{layer:02d}.safetensors"


def _replace(temporary: Path, target: Path) -> None:
    """Put a finished folder in the place of another one, if there is one."""
    if target.exists():
        # A folder cannot be renamed onto a full one, so the old one steps aside first and comes back on failure.
        aside = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}.", suffix=".old"))
        os.replace(target, aside)
        try:
            temporary.replace(target)
        except OSError:
            os.replace(aside, target)
            raise
        shutil.rmtree(aside, ignore_errors=True)
    else:
        temporary.replace(target)


def _checked(meta: Mapping[str, Any]) -> Meta:
    """Check that a meta is complete and agrees with itself."""
    keys = set(Meta.__annotations__)
    if set(meta) != keys:
        difference = sorted(set(meta) ^ keys)
        raise BreakevenError(f"{_META} of activations has other keys than it should: {', '.join(difference)}.")
    layers, texts = meta["n_layers"], len(meta["text_ids"])
    if not (len(meta["scaling"]) == len(meta["windows"]) == layers > 0):
        raise BreakevenError(f"{_META} of activations does not name scaling and window of each of {layers} layers.")
    if len({len(tokens) for tokens in meta["token_ids"]}) != 1 or len(meta["token_ids"]) != texts:
        raise BreakevenError(f"{_META} of activations: {texts} texts need as many token lists of one length.")
    if len(set(meta["text_ids"])) != texts:
        # They are the clusters of every interval: two texts under one name would count as one.
        raise BreakevenError(f"{_META} of activations names a text twice: {', '.join(sorted(meta['text_ids']))}.")
    if meta["n_query_heads"] % meta["n_kv_heads"]:
        raise BreakevenError(
            f"{_META} of activations: {meta['n_query_heads']} query heads cannot share {meta['n_kv_heads']} KV heads."
        )
    return cast(Meta, dict(meta))


def _check_tensors(meta: Meta, layer: int, tensors: Mapping[str, Tensor]) -> None:
    """Check names and shapes of a layer."""
    heads = dict.fromkeys(QUERIES, meta["n_query_heads"]) | dict.fromkeys(KEYS_VALUES, meta["n_kv_heads"])
    expected = {
        name: (len(meta["text_ids"]), n_heads, n_tokens(meta), meta["head_dim"]) for name, n_heads in heads.items()
    }
    found = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if found != expected:
        raise BreakevenError(f"layer {layer} was captured as {found}, but its model and texts make it {expected}.")
