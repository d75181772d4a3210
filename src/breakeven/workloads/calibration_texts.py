"""Real prose for capturing activations, with no download: the language reference that Python carries.

`pydoc_data.topics` is long technical English. Only its paragraphs are used: headings, code, grammar and tables go,
quotes and stars around names go, and a paragraph that several topics repeat is taken once. The prompts of the
workloads are never used, so nothing that is measured was seen here. The text differs slightly between Python
releases (the hardware fingerprint names the release).
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable

import datasets
from transformers import PreTrainedTokenizerBase

from breakeven.errors import BreakevenError, ConfigError

_MIN_WORDS = 8  # shorter paragraphs are introductions of code and single remarks
_NOT_PROSE = re.compile(r"^\s|^\* |^[*=\-~^+|]{3,}", re.MULTILINE)  # code and grammar, lists, headings, tables
_MARKUP = (
    (re.compile(r"\"\"(.*?)\"\"|\"'(.*?)'\"|``(.*?)``"), lambda m: next(g for g in m.groups() if g is not None)),
    (re.compile(r"\"([^\"\s]+)\""), lambda m: m[1]),  # "name" -> name
    (re.compile(r"(?<!\w)\*{1,2}([^*\s](?:[^*]*[^*\s])?)\*{1,2}(?!\w)"), lambda m: m[1]),  # *term* -> term
    (re.compile(r"\s*\[\d+\]"), lambda m: ""),  # footnote marks
)


def paragraphs() -> datasets.Dataset:
    """Return the prose of the language reference, one row a paragraph, in the order of topic names.

    Returns:
        A dataset with the columns topic, index (of the paragraph within its topic) and text; no text appears twice.

    Raises:
        BreakevenError: this Python was built without `pydoc_data`.
    """
    try:
        from pydoc_data.topics import topics
    except ImportError as error:
        raise BreakevenError(
            "this Python lacks pydoc_data, the text for calibration. Install the full standard library of Python 3.11."
        ) from error
    rows, seen = [], set()
    for topic in sorted(topics):
        for index, block in enumerate(re.split(r"\n\s*\n", topics[topic])):
            text = _prose(block)
            if text is not None and text not in seen:
                seen.add(text)
                rows.append({"topic": topic, "index": index, "text": text})
    return datasets.Dataset.from_list(rows)


def _prose(block: str) -> str | None:
    """Return a paragraph on one line without markup, or None if the block is not a paragraph."""
    block = block.strip("\n")
    if not block or _NOT_PROSE.search(block):
        return None
    text = " ".join(re.sub(r"(\w-)\n(?=\w)", r"\1", block).split())  # "built-\nin" is one word
    for pattern, replacement in _MARKUP:
        text = pattern.sub(replacement, text).strip()
    return text if len(text.split()) >= _MIN_WORDS and text[-1] in ".:;!?)" else None


def calibration_texts(
    n_texts: int, n_tokens: int, tokenizer: PreTrainedTokenizerBase, seed: int
) -> list[tuple[str, list[int]]]:
    """Cut distinct, non-overlapping passages of an exact length out of the prose.

    A passage starts at the start of a paragraph and stays within one topic where topics are long enough, drawn from
    as many different topics as possible: texts are the clusters of every interval, so they should be unalike. If
    that yields too few, passages run on from topic to topic.

    Args:
        n_texts: passages wanted.
        n_tokens: tokens of each, the tokenizer's own opening token (BOS) included.
        tokenizer: encodes with its special tokens, as the model expects a text to begin.
        seed: chooses topics and passages; the same seed gives the same texts.

    Returns:
        (text id, token ids) with exactly `n_tokens` ids each; the id names topic and paragraph of its beginning.

    Raises:
        ConfigError: a count is below 1, or the text does not suffice; says how many passages there are.
    """
    if n_texts < 1 or n_tokens < 1:
        raise ConfigError(f"{n_texts} texts of {n_tokens} tokens were asked for. Ask for at least 1 of each.")
    rng = random.Random(seed)  # noqa: S311 - a choice of texts, not a secret
    by_topic: dict[str, list[tuple[str, str]]] = {}
    for row in paragraphs():
        by_topic.setdefault(row["topic"], []).append((f"{row['topic']}:{row['index']}", row["text"]))
    topics = list(by_topic.values())
    rng.shuffle(topics)
    # Every topic's first passage, then every topic's second, ...
    separate = _round_robin([_passages(topic, n_tokens, tokenizer) for topic in topics])
    if len(separate) >= n_texts:
        return separate[:n_texts]
    joined = _passages([paragraph for topic in topics for paragraph in topic], n_tokens, tokenizer)
    if len(joined) < n_texts:
        raise ConfigError(
            f"{n_texts} texts of {n_tokens} tokens were asked for, but the prose gives {len(joined)} of that length. "
            "Lower capture.texts or capture.tokens_per_text."
        )
    return rng.sample(joined, n_texts)


def _passages(
    pieces: Iterable[tuple[str, str]], n_tokens: int, tokenizer: PreTrainedTokenizerBase
) -> list[tuple[str, list[int]]]:
    """Cut consecutive paragraphs into passages; what is left of a passage's last paragraph is not used again."""
    found: list[tuple[str, list[int]]] = []
    parts: list[tuple[str, str]] = []
    length = 0
    for piece in pieces:
        parts.append(piece)
        length += len(tokenizer(piece[1], add_special_tokens=False, verbose=False)["input_ids"])
        if length < n_tokens:  # counted apart from each other: a cheap lower bound, checked below
            continue
        ids = tokenizer("\n\n".join(text for _, text in parts), verbose=False)["input_ids"]
        if len(ids) > n_tokens:  # more than enough, so that no closing special token is among the first n_tokens
            found.append((parts[0][0], [int(token) for token in ids[:n_tokens]]))
            parts, length = [], 0
    return found


def _round_robin(groups: list[list[tuple[str, list[int]]]]) -> list[tuple[str, list[int]]]:
    rounds = max(map(len, groups), default=0)
    return [group[index] for index in range(rounds) for group in groups if index < len(group)]
