"""Verified folders of the model store into memory: from disk only, safetensors only, no foreign code."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import torch
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerFast
from transformers.utils import logging as hf_logging

from breakeven import io, paths
from breakeven.config import DTYPES
from breakeven.errors import BreakevenError, ConfigError, DownloadError
from breakeven.models import facts, store

if TYPE_CHECKING:
    from breakeven.models.adapter import LayeredModel

DEFAULT_LOCK = Path("build/models.lock.json")


def load_target(
    lock_path: str | Path = DEFAULT_LOCK,
    *,
    dtype: str | torch.dtype,
    device: str,
    threads: int = 0,
    max_ram_gib: float = 0.0,
) -> tuple[LayeredModel, PreTrainedTokenizerFast]:
    """Load the target model of the lock; see `load_role`."""
    return load_role(lock_path, "target", dtype=dtype, device=device, threads=threads, max_ram_gib=max_ram_gib)


def load_role(
    lock_path: str | Path,
    role: str,
    *,
    dtype: str | torch.dtype,
    device: str,
    threads: int = 0,
    max_ram_gib: float = 0.0,
) -> tuple[LayeredModel, PreTrainedTokenizerFast]:
    """Load one model of the lock, after checking that its files are the ones that the lock lists.

    Args:
        lock_path: models.lock.json.
        role: "target", or "draft" where the small_lm drafter is configured.
        dtype: of weights, activations and cache.
        device: cpu, cuda or mps.
        threads: torch threads; 0: all physical cores.
        max_ram_gib: hardware.max_ram_gib; 0: what is available.

    Raises:
        BreakevenError: the lock lacks the role, a file is missing, truncated or altered, or the model does not fit.
    """
    from breakeven.models.adapter import LayeredModel

    models = io.read_json(lock_path)["models"]
    if role not in models:
        raise BreakevenError(
            f"{lock_path} has no {role!r} model, only {', '.join(models)}. Configure it (drafter=small_lm with "
            "drafter.small_lm.model) and run `dvc repro download`."
        )
    entry = models[role]
    folder = paths.model_store() / entry["folder"]
    store.verify(folder, entry["files"])
    torch.set_num_threads(threads or psutil.cpu_count(logical=False) or 1)
    model, tokenizer = load_folder(folder, dtype=dtype, device=device, max_ram_gib=max_ram_gib)
    return LayeredModel(model, tokenizer, entry["name"]), tokenizer


def load_folder(
    folder: Path, *, dtype: str | torch.dtype, device: str, max_ram_gib: float = 0.0
) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    """Load a model and its tokenizer from a folder of the store.

    Args:
        folder: with a manifest, whose files are verified first.
        dtype: of the weights, e.g. "bfloat16".
        device: cpu, cuda or mps.
        max_ram_gib: hardware.max_ram_gib; 0: what is available.

    Returns:
        The model in evaluation mode, without gradients, and the tokenizer.

    Raises:
        DownloadError: a file is missing, damaged or altered, or the weights do not fill the model.
        BreakevenError: the model does not fit into memory.
    """
    dtype = torch_dtype(dtype)
    manifest = store.verify(folder)
    _require_memory(manifest, dtype, device, max_ram_gib)
    for path in facts.weight_files(folder):
        facts.header(path)
    auto: Any = AutoModelForCausalLM
    try:
        with _bars_only_on_a_terminal():
            model, report = auto.from_pretrained(
                folder,
                dtype=dtype,
                attn_implementation="sdpa",
                local_files_only=True,
                use_safetensors=True,
                trust_remote_code=False,
                output_loading_info=True,
            )
    except (SafetensorError, OSError, ValueError, RuntimeError) as error:
        raise DownloadError(
            f"{folder} cannot be loaded ({error}). Run `dvc repro download` to fetch it again."
        ) from error
    _require_complete(folder, report)
    model.requires_grad_(False)
    return model.to(device).eval(), load_tokenizer(folder)


@contextlib.contextmanager
def _bars_only_on_a_terminal() -> Iterator[None]:
    """Keep Transformers' progress bars out of log files."""
    enabled = hf_logging.is_progress_bar_enabled()
    if enabled and not sys.stderr.isatty():
        hf_logging.disable_progress_bar()
    try:
        yield
    finally:
        if enabled:
            hf_logging.enable_progress_bar()


def load_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    """Load a folder's tokenizer.

    Raises:
        DownloadError: it is missing or damaged.
    """
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # the tokenizers library raises bare exceptions on damaged files
        mend = "Run `dvc repro download` to fetch it again."
        raise DownloadError(f"the tokenizer in {folder} cannot be loaded ({error}). {mend}") from error
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise DownloadError(f"{folder} has no fast tokenizer (tokenizer.json). Add one, or choose another model.")
    return tokenizer


def torch_dtype(name: str | torch.dtype) -> torch.dtype:
    """Return a torch dtype by its configured name.

    Raises:
        ConfigError: the name is not one of `config.DTYPES`.
    """
    if isinstance(name, torch.dtype):
        return name
    if name not in DTYPES:
        raise ConfigError(f"dtype {name!r} is unknown. Valid: {', '.join(DTYPES)}.")
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def _require_memory(manifest: dict[str, Any], dtype: torch.dtype, device: str, max_ram_gib: float) -> None:
    """Refuse a model whose weights alone do not fit where they are to go."""
    weights = manifest["n_parameters"] * dtype.itemsize
    what = f"{manifest['name']} in {str(dtype).removeprefix('torch.')}"
    store.require_ram(weights, max_ram_gib, what)
    if device.startswith("cuda"):
        free = torch.cuda.mem_get_info(device)[0]
        if weights > free:
            raise BreakevenError(
                f"{what} needs {weights / store.GIB:.2f} GiB, but {device} has only {free / store.GIB:.2f} GiB free. "
                "Choose a smaller model or another hardware target."
            )


def _require_complete(folder: Path, report: dict[str, Any]) -> None:
    """Refuse weights that leave parts of the model at random values, as Transformers only warns about them."""
    for kind in ("missing_keys", "mismatched_keys", "error_msgs"):
        if found := report.get(kind):
            shown = ", ".join(sorted(str(item) for item in found)[:3])
            raise DownloadError(
                f"the weights in {folder} do not fill the model: {kind.replace('_', ' ')} {shown}. "
                "They belong to another configuration; run `dvc repro download`, or use the right folder."
            )
