"""Which files of a model folder are wanted: data only, never code and never pickles, which can run code."""

from __future__ import annotations

import re
from collections.abc import Iterable

from breakeven.errors import DownloadError

# Top-level files only: subfolders hold the same model in other formats (onnx, original, ...).
_WEIGHTS = re.compile(r"model(-\d{5}-of-\d{5})?\.safetensors")
_DATA = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\.(json|txt|jinja|model)")
_PICKLES = (".bin", ".pt", ".pth", ".pkl", ".ckpt")


def wanted(names: Iterable[str], where: str) -> list[str]:
    """Return the files to take: weights, then configuration and tokenizer.

    Args:
        names: relative names of all files that the source offers.
        where: the source, for the message.

    Raises:
        DownloadError: there are no safetensors weights (pickles are refused), or no config.json.
    """
    offered = sorted(names)
    weights = [name for name in offered if _WEIGHTS.fullmatch(name)]
    if not weights:
        pickles = [name for name in offered if name.endswith(_PICKLES)]
        found = f"only pickled weights ({', '.join(pickles)}), which can run code" if pickles else "no weights"
        raise DownloadError(
            f"{where} has {found}; only safetensors are read. Choose a revision with safetensors, or convert the model "
            "yourself and point to it with model.source.kind=local model.source.path=FOLDER."
        )
    # A single file beside shards of the same model: loading prefers the single one, so the shards are not fetched.
    if "model.safetensors" in weights:
        weights = ["model.safetensors"]
    data = [name for name in offered if _DATA.fullmatch(name)]
    if weights == ["model.safetensors"]:
        data = [name for name in data if name != "model.safetensors.index.json"]
    if "config.json" not in data:
        raise DownloadError(f"{where} has no config.json: it is not a Transformers model.")
    return weights + data
