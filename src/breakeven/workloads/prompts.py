"""What a prompt is, which categories there are, and how prompts become tokens.

The categories are the six of Spec-Bench (Xia et al. 2024, https://arxiv.org/abs/2401.07851) and code: acceptance
depends on the kind of text more than on anything else, so results are never pooled without showing them apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import datasets
from transformers import PreTrainedTokenizerBase

from breakeven.errors import BreakevenError, ConfigError

CATEGORIES = ("multi_turn", "translation", "summarization", "qa", "math", "rag", "code")

Split = Literal["calibration", "measured"]


@dataclass(frozen=True)
class Prompt:
    """One request: the first user turn only, so that every prompt costs one prefill."""

    id: str
    category: str
    text: str
    split: Split


def require_category(key: str, category: str) -> str:
    """Return the category if it is one of `CATEGORIES`.

    Raises:
        ConfigError: it is not; names the valid ones.
    """
    if category not in CATEGORIES:
        raise ConfigError(f"{key}: unknown category {category!r}. Valid: {', '.join(CATEGORIES)}.")
    return category


def to_prompts(prompts: datasets.Dataset, split: Split, per_category: int) -> list[Prompt]:
    """Take the first `per_category` prompts of a split from every category, in the order of the dataset.

    Args:
        prompts: what `load_prompts` returned.
        split: "calibration" (chooses settings) or "measured" (is reported); no prompt is in both.
        per_category: prompts wanted from each category.

    Raises:
        ConfigError: a category has fewer, or `per_category` is below 1.
    """
    if per_category < 1:
        raise ConfigError(f"{per_category} {split} prompts a category were asked for. Ask for at least 1.")
    taken: dict[str, list[Prompt]] = {category: [] for category in prompts["category"]}
    for row in prompts:
        if row["split"] == split:
            taken[row["category"]].append(Prompt(**row))
    for category, found in taken.items():
        if len(found) < per_category:
            raise ConfigError(
                f"category {category!r} has {len(found)} {split} prompts, but {per_category} were asked for. "
                f"Ask for at most {len(found)} (speculate.prompts_per_category and "
                "speculate.sweep_prompts_per_category), change workload.calibration_prompts_per_category, "
                "or choose a larger workload."
            )
    return [prompt for found in taken.values() for prompt in found[:per_category]]


def encode_prompt(prompt: Prompt, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Return the token ids that the model is prefilled with.

    A tokenizer with a chat template gets one user turn and the opening of the answer; any other the plain text
    with the tokenizer's own special tokens (the template brings its own).

    Raises:
        BreakevenError: the tokenizer turns the prompt into nothing.
    """
    if tokenizer.chat_template:
        turn = [{"role": "user", "content": prompt.text}]
        # As text first: what apply_chat_template returns for tokenize=True changed between Transformers releases.
        text: Any = tokenizer.apply_chat_template(turn, add_generation_prompt=True, tokenize=False)
        ids = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
    else:
        ids = tokenizer(prompt.text, verbose=False)["input_ids"]
    tokens = [int(token) for token in ids]
    if not tokens:
        raise BreakevenError(f"prompt {prompt.id} has no tokens. Remove it from the workload or mend the tokenizer.")
    return tokens


def check_context(token_counts: Mapping[str, int], max_context: int, *, max_new_tokens: int = 0) -> None:
    """Refuse prompts that do not fit before any work is done; nothing is ever cut silently.

    Args:
        token_counts: prompt id -> tokens of the encoded prompt (or of prompt and output together).
        max_context: tokens of prompt and output together: the smaller of the model's and the hardware target's limit.
        max_new_tokens: tokens that will be written behind the prompt.

    Raises:
        ConfigError: names every prompt that is too long, with its length.
    """
    room = max_context - max_new_tokens
    too_long = {name: count for name, count in token_counts.items() if count > room}
    if too_long:
        listed = ", ".join(f"{name} ({count})" for name, count in too_long.items())
        raise ConfigError(
            f"{len(too_long)} of {len(token_counts)} prompts need more than the {room} tokens that there are "
            f"(max_context {max_context}, {max_new_tokens} of them kept for the output): {listed}. "
            "Raise hardware.max_context_tokens if the model allows it, "
            "lower speculate.max_new_tokens, or leave their category out of workload.categories."
        )
