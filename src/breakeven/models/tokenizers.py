"""Whether two tokenizers speak the same tokens, by content: names and paths say nothing about that."""

from __future__ import annotations

import json
from typing import Any

from transformers import PreTrainedTokenizerBase

from breakeven import io
from breakeven.errors import TokenizerMismatchError


def content(tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    """Return what decides how text becomes token ids: no names, no paths, no chat template, no padding options.

    Returns:
        `vocab` (token to id, added tokens included), `merges` (list of pairs), `added_tokens` (id to text),
        `normalizer` and `pre_tokenizer` (their settings).

    Raises:
        TokenizerMismatchError: the tokenizer is not a fast one, so its content cannot be read.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise TokenizerMismatchError(
            f"{type(tokenizer).__name__} is not a fast tokenizer: its content cannot be compared. "
            "Use a model whose folder has a tokenizer.json."
        )
    state = json.loads(backend.to_str())
    merges = state["model"].get("merges") or []
    return {
        "vocab": dict(sorted(tokenizer.get_vocab().items())),
        # Old files write a merge as "a b", new ones as ["a", "b"].
        "merges": [merge.split(" ") if isinstance(merge, str) else list(merge) for merge in merges],
        "added_tokens": {str(token["id"]): token["content"] for token in state.get("added_tokens", [])},
        "normalizer": state.get("normalizer"),
        "pre_tokenizer": state.get("pre_tokenizer"),
    }


def content_digest(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return the sha256 of `content`: equal for two tokenizers that encode alike, whatever they are called."""
    return io.sha256_json(content(tokenizer))


def require_same_tokenizer(target: PreTrainedTokenizerBase, draft: PreTrainedTokenizerBase) -> None:
    """Refuse a draft model whose token ids do not mean what the target's mean.

    Raises:
        TokenizerMismatchError: names the first difference.
    """
    difference = first_difference(content(target), content(draft))
    if difference:
        raise TokenizerMismatchError(
            f"the draft model's tokenizer is not the target's: {difference}. A draft must propose the target's own "
            "token ids: choose a draft model of the target's family."
        )


def first_difference(target: dict[str, Any], draft: dict[str, Any]) -> str | None:
    """Describe the first difference between two `content` results, or return None when they are alike."""
    by_id = [{index: token for token, index in side["vocab"].items()} for side in (target, draft)]
    for index in sorted(by_id[0].keys() | by_id[1].keys()):
        theirs, ours = by_id[0].get(index), by_id[1].get(index)
        if theirs != ours:
            sizes = f"vocabularies of {len(by_id[0])} and {len(by_id[1])} tokens"
            return f"token {index} is {theirs!r} in the target and {ours!r} in the draft ({sizes})"
    for rank, (left, right) in enumerate(zip(target["merges"], draft["merges"], strict=False)):
        if left != right:
            return f"merge {rank} is {left} in the target and {right} in the draft"
    if len(target["merges"]) != len(draft["merges"]):
        return f"the target has {len(target['merges'])} merges and the draft {len(draft['merges'])}"
    for key in ("added_tokens", "normalizer", "pre_tokenizer"):
        if target[key] != draft[key]:
            what = key.replace("_", " ")
            return f"{what} differ: {_short(target[key])} in the target, {_short(draft[key])} in the draft"
    return None


def _short(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, ensure_ascii=False)
    return text if len(text) <= 120 else text[:117] + "..."


def real_vocab_size(tokenizer: PreTrainedTokenizerBase, model_vocab: int) -> int:
    """Return how many of the model's logits belong to tokens: rows above are padding and must never be drawn.

    Args:
        tokenizer: any tokenizer.
        model_vocab: rows of the model's head. It may be larger (padding, as in Qwen2.5), or a little smaller (Gemma 3's
            tokenizer knows an image token that its text models have no row for): then every row is real.
    """
    return min(max(tokenizer.get_vocab().values()) + 1, model_vocab)
