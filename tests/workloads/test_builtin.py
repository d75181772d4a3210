"""Traps of a hand-written prompt set: copied text, a thin category, near-duplicates, passages of the wrong length."""

from __future__ import annotations

import json
import re
from collections import Counter
from importlib import resources
from pathlib import Path

import pytest

from breakeven.errors import BreakevenError, ConfigError
from breakeven.workloads import builtin
from breakeven.workloads.prompts import CATEGORIES

SPEC_BENCH = Path(__file__).parents[3] / "shared" / "data" / "spec_bench_dev.jsonl"
CONTENT = resources.files("breakeven.workloads").joinpath(builtin.FILE).read_bytes()
ROWS = builtin.load(CONTENT, "builtin")


def shingles(text: str, n: int = 8) -> set[tuple[str, ...]]:
    words = re.findall(r"\w+", text.lower())
    return {tuple(words[i : i + n]) for i in range(len(words) - n + 1)}


def shared(ours: list[dict[str, str]], theirs: list[str]) -> list[tuple[str, tuple[str, ...]]]:
    known = set().union(*map(shingles, theirs))
    return [(row["id"], words) for row in ours for words in shingles(row["text"]) & known]


def test_twelve_prompts_in_every_category():
    assert Counter(row["category"] for row in ROWS) == dict.fromkeys(CATEGORIES, 12)


def test_no_prompt_shares_eight_words_with_spec_bench():
    if not SPEC_BENCH.is_file():
        pytest.skip(f"{SPEC_BENCH} is not here: the comparison with Spec-Bench did not run")
    questions = [json.loads(line) for line in SPEC_BENCH.read_text(encoding="utf-8").splitlines()]
    theirs = [str(text) for q in questions for text in [*q["turns"], *q.get("reference", [])]]
    assert len(theirs) > 240
    assert shared(ROWS, theirs) == []


def test_the_comparison_finds_a_planted_copy():
    copied = "so: The quick brown FOX, jumps over the lazy dog!"
    assert shared([{"id": "planted", "text": copied}], ["the quick brown fox jumps over the lazy cat"])
    assert not shared([{"id": "planted", "text": copied}], ["the quick brown fox leaps over the lazy dog"])


def test_no_two_prompts_share_a_passage():
    seen: dict[tuple[str, ...], str] = {}
    for row in ROWS:
        for words in shingles(row["text"], 16):  # longer than any shared instruction
            assert seen.setdefault(words, row["id"]) == row["id"], words


@pytest.mark.parametrize("category", ["summarization", "rag"])
def test_source_texts_are_long_enough_to_copy_from(category):
    lengths = [len(row["text"].split()) for row in ROWS if row["category"] == category]
    assert len(lengths) == 12
    assert min(lengths) >= 120
    assert max(lengths) <= 300


def test_translation_goes_from_and_to_three_languages():
    texts = [row["text"] for row in ROWS if row["category"] == "translation"]
    pairs = {m.groups() for m in (re.match(r"Translate this (\w+) text into (\w+):", text) for text in texts) if m}
    others = {"German", "French", "Spanish"}
    assert pairs == {(o, "English") for o in others} | {("English", o) for o in others}


def test_code_in_the_prompts_is_python():
    texts = [row["text"] for row in ROWS if row["category"] == "code"]
    blocks = [block for text in texts for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL)]
    assert len(blocks) >= 8
    for block in blocks:
        compile(block, "prompt", "exec")


def test_unknown_category_is_refused_with_the_valid_ones():
    with pytest.raises(ConfigError, match=r"mine, line 1: unknown category 'poetry'. Valid: multi_turn, .*code"):
        builtin.load(b'{"id": "a", "category": "poetry", "text": "t"}', "mine")


def test_missing_text_is_refused_with_its_line():
    with pytest.raises(BreakevenError, match=r"mine, line 2: field 'text' is missing"):
        builtin.load(b'{"id": "a", "category": "qa", "text": "t"}\n{"id": "b", "category": "qa"}', "mine")
