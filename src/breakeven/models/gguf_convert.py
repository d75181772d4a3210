"""GGUF to safetensors: dequantize once to float32, so that every later stage loads a plain Transformers folder.

What is measured is therefore the dequantized model: its weights are the rounded ones of the file, its arithmetic is
that of the configured dtype. The manifest records the file's quantization.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from breakeven.errors import DownloadError
from breakeven.models.store import GIB, Progress, require_disk, require_ram

_BYTES_PER_WEIGHT = 4  # float32
# Estimate of the peak: libraries and the tokenizer's tables, then the file's pages and two copies of the weights.
# Measured: Gemma-3-270M peaks at 3.3 GiB with 1.0 GiB of weights, so that the estimate errs on the safe side.
_FIXED_BYTES = 2 * GIB
_COPIES = 3


def convert(source: Path, ready: Path, max_ram_gib: float, progress: Progress) -> str:
    """Convert one GGUF file into a Transformers folder (configuration, tokenizer, chat template, safetensors).

    Args:
        source: the GGUF file.
        ready: an empty folder for the result.
        max_ram_gib: hardware.max_ram_gib; 0: what is available.
        progress: receives a line of text.

    Returns:
        The file's quantization, e.g. "Q4_1".

    Raises:
        DownloadError: the file is not GGUF, is truncated, or holds an architecture that cannot be converted.
        BreakevenError: too little memory or disk.
    """
    n_parameters, quantization = inspect(source)
    weights = n_parameters * _BYTES_PER_WEIGHT
    require_disk(ready, weights, f"converting {source.name}")
    require_ram(_FIXED_BYTES + _COPIES * weights, max_ram_gib, f"converting {source.name}")
    progress(f"converting {source.name} ({n_parameters / 1e6:.0f} M weights, {quantization}) to float32 safetensors")
    try:
        _convert(source, ready)
    except (ValueError, KeyError, RuntimeError, NotImplementedError) as error:
        raise DownloadError(
            f"{source.name} cannot be converted ({error}). Use a model that Transformers reads from GGUF, or a "
            "safetensors folder with model.source.kind=local."
        ) from error
    return quantization


def inspect(source: Path) -> tuple[int, str]:
    """Return the number of weights and the quantization's name of a GGUF file, reading only its header.

    Raises:
        DownloadError: the file is not GGUF, or is shorter than its header says.
    """
    import gguf

    with source.open("rb") as stream:
        if stream.read(4) != b"GGUF":
            raise DownloadError(f"{source.name} is not a GGUF file. Only safetensors and GGUF data are read.")
    try:
        reader: Any = gguf.GGUFReader(source)
        ends = [int(tensor.data_offset) + int(tensor.n_bytes) for tensor in reader.tensors]
        n_parameters = sum(int(tensor.n_elements) for tensor in reader.tensors)
        file_type = reader.fields.get("general.file_type")
    except Exception as error:
        raise DownloadError(f"{source.name} is a damaged GGUF file ({error}). Fetch it again.") from error
    if not ends or max(ends) > source.stat().st_size:
        raise DownloadError(f"{source.name} is a truncated GGUF file. Fetch it again.")
    name = gguf.LlamaFileType(int(file_type.contents())).name if file_type else "UNKNOWN"
    return n_parameters, name.removeprefix("MOSTLY_").removeprefix("ALL_")


def _convert(source: Path, ready: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    where: dict[str, Any] = {"gguf_file": source.name, "local_files_only": True}
    tokenizer = AutoTokenizer.from_pretrained(source.parent, **where)
    loaded: Any = AutoModelForCausalLM.from_pretrained(source.parent, dtype=torch.float32, **where)
    # `save_pretrained` refuses a model that came from GGUF, although it is not quantized any more: hang the same
    # tensors into a model of the same configuration, without its quantization section and the name of the file.
    settings = loaded.config.to_dict()
    for key in ("quantization_config", "_name_or_path", "_model_name_or_path"):
        settings.pop(key, None)
    config = type(loaded.config)(**settings)
    with torch.device("meta"):
        plain: Any = type(loaded)(config)
    plain.load_state_dict(loaded.state_dict(), assign=True)
    plain.tie_weights()
    plain.generation_config = loaded.generation_config
    plain.save_pretrained(ready)
    tokenizer.save_pretrained(ready)
