"""What a model folder holds, as the lock file and later stages want to know it."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from breakeven.config import ARCHITECTURES
from breakeven.errors import DownloadError


def describe(folder: Path) -> dict[str, Any]:
    """Return shapes, stored dtype, tokenizer digest and chat template digest of a Transformers folder.

    Returns:
        `n_parameters` (tied weights counted once), `n_layers`, `n_query_heads`, `n_kv_heads`, `head_dim`, `hidden`,
        `vocab` (rows of the embedding), `max_context_tokens`, `architecture`, `dtype_stored`, `tokenizer_digest`,
        `chat_template_sha256` (or None).

    Raises:
        DownloadError: a file is missing, damaged, or of an architecture that is not supported.
    """
    from transformers import AutoConfig, AutoTokenizer

    from breakeven.models import tokenizers

    require_supported(folder)
    dtypes = sorted({dtype for path in weight_files(folder) for dtype in header(path)["dtypes"]})
    try:
        config: Any = AutoConfig.from_pretrained(folder, local_files_only=True)
        tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        raise DownloadError(f"{folder} is not a complete model folder: {error}") from error
    heads = config.num_attention_heads
    template = tokenizer.chat_template
    return {
        "architecture": config.model_type,
        "n_parameters": _count_parameters(config),
        "n_layers": config.num_hidden_layers,
        "n_query_heads": heads,
        "n_kv_heads": getattr(config, "num_key_value_heads", None) or heads,
        "head_dim": getattr(config, "head_dim", None) or config.hidden_size // heads,
        "hidden": config.hidden_size,
        "vocab": config.vocab_size,
        "max_context_tokens": config.max_position_embeddings,
        "dtype_stored": "+".join(dtypes),
        "tokenizer_digest": tokenizers.content_digest(tokenizer),
        "chat_template_sha256": hashlib.sha256(template.encode()).hexdigest() if template else None,
    }


def _count_parameters(config: Any) -> int:
    """Count the weights of the model that the configuration describes, without making them."""
    import torch
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model: Any = AutoModelForCausalLM.from_config(config)
    model.tie_weights()
    return sum(parameter.numel() for parameter in model.parameters())


def require_supported(folder: Path) -> None:
    """Refuse an architecture that the adapter cannot run, before its weights are fetched.

    Raises:
        DownloadError: config.json is missing, unreadable or names another architecture.
    """
    try:
        model_type = json.loads((folder / "config.json").read_text(encoding="utf-8"))["model_type"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DownloadError(f"{folder} has no readable config.json with a model_type ({error}).") from error
    if model_type not in ARCHITECTURES:
        raise DownloadError(f"architecture {model_type!r} is not supported. Supported: {', '.join(ARCHITECTURES)}.")


def weight_files(folder: Path) -> list[Path]:
    """Return the safetensors files that hold the model: those of the index, or the only one.

    Raises:
        DownloadError: there is none, or one that the index names is missing.
    """
    index = folder / "model.safetensors.index.json"
    names = {"model.safetensors"}
    if index.is_file():
        try:
            names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise DownloadError(f"{index} is damaged ({error}). Run `dvc repro download` to fetch it again.") from error
    paths = [folder / Path(name).name for name in sorted(names)]
    for path in paths:
        if not path.is_file():
            raise DownloadError(f"{path} is missing. Only safetensors weights are read, never pickles.")
    return paths


def header(path: Path) -> dict[str, Any]:
    """Read a safetensors header and check that the file is as long as the header says.

    Returns:
        `dtypes` (set of names such as "F32"), `n_elements`, `bytes` (of tensor data).

    Raises:
        DownloadError: the header is damaged or the file is truncated.
    """
    size = path.stat().st_size
    with path.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if not 2 <= length <= size - 8:
            raise DownloadError(f"{path} is truncated or no safetensors file. {_MEND}")
        try:
            tensors = {k: v for k, v in json.loads(stream.read(length)).items() if k != "__metadata__"}
            data_bytes = max((tensor["data_offsets"][1] for tensor in tensors.values()), default=0)
            elements = sum(_product(tensor["shape"]) for tensor in tensors.values())
            dtypes = {str(tensor["dtype"]) for tensor in tensors.values()}
        except (ValueError, KeyError, AttributeError, TypeError, IndexError) as error:
            raise DownloadError(f"{path} has a damaged safetensors header ({error}). {_MEND}") from error
    if size != 8 + length + data_bytes:
        raise DownloadError(f"{path} has {size} bytes, its header says {8 + length + data_bytes}: truncated. {_MEND}")
    return {"dtypes": dtypes, "n_elements": elements, "bytes": data_bytes}


_MEND = "Run `dvc repro download` to fetch it again."


def _product(shape: list[int]) -> int:
    result = 1
    for extent in shape:
        result *= extent
    return result
