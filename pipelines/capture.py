"""Stage capture: queries, keys and values of every layer, from real text."""

from collections.abc import Iterator

import torch
from torch import Tensor
from tqdm import tqdm

from breakeven import config, workloads
from breakeven.kv import activations
from breakeven.kv.capture import capture
from breakeven.models import loading
from breakeven.stage import run


def main() -> None:
    """Load, capture, save."""
    cfg = config.load()
    target, tokenizer = loading.load_target(
        "build/models.lock.json", dtype=cfg.capture.dtype, device=cfg.hardware.device, threads=cfg.hardware.threads
    )
    texts = workloads.calibration_texts(cfg.capture.texts, cfg.capture.tokens_per_text, tokenizer, cfg.measure.seed)
    captured = [capture(target, tokens) for _, tokens in tqdm(texts, desc="capture", unit="text")]

    def layers() -> Iterator[dict[str, Tensor]]:
        for per_text in zip(*captured, strict=True):
            # [texts, heads, tokens, head_dim]
            yield {name: torch.stack([layer.tensors()[name] for layer in per_text]) for name in per_text[0].tensors()}

    meta = {
        "model": target.name,
        "dtype": cfg.capture.dtype,
        "n_layers": target.n_layers,
        "n_query_heads": target.n_query_heads,
        "n_kv_heads": target.n_kv_heads,
        "head_dim": target.head_dim,
        "scaling": [layer.scaling for layer in captured[0]],
        "windows": target.windows,
        "text_ids": [text_id for text_id, _ in texts],
        "token_ids": [tokens for _, tokens in texts],
    }
    activations.save("data/activations", meta, layers())


if __name__ == "__main__":
    run(main)
