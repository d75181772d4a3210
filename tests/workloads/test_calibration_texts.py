"""Traps of calibration text: passages that overlap, that are a token short, that change from run to run, or code."""

from __future__ import annotations

import functools
import re
import sys

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from breakeven.config import WorkloadConfig
from breakeven.errors import BreakevenError, ConfigError
from breakeven.models.sources.random import byte_tokenizer
from breakeven.workloads import CATEGORIES, calibration_texts, load_prompts
from breakeven.workloads.calibration_texts import paragraphs


@functools.cache
def tokenizer() -> PreTrainedTokenizerFast:
    return byte_tokenizer(512)


@functools.cache
def prose() -> list[dict[str, object]]:
    return list(paragraphs())


def test_there_is_prose_enough_for_every_experiment():
    assert len(prose()) > 400
    assert sum(len(str(row["text"]).split()) for row in prose()) > 15_000


def test_no_paragraph_appears_twice_although_topics_repeat_each_other():
    texts = [row["text"] for row in prose()]
    assert len(set(texts)) == len(texts)


def test_paragraphs_are_prose_without_headings_code_grammar_or_wrapped_lines():
    for row in prose():
        text = str(row["text"])
        assert not re.search(r"\n|::=|>>>|^\s|\*{3}|={4}|\w- (?:in|time|level)\b", text), text
        assert len(text.split()) >= 8
    quoted = [row["text"] for row in prose() if re.search(r'"\w+"', str(row["text"]))]
    assert quoted == []


@settings(max_examples=6)
@given(st.integers(1, 120), st.sampled_from([8, 64, 257]), st.integers(0, 5))
@example(120, 64, 0)  # more passages than topics: two from one topic must not overlap
def test_exact_lengths_distinct_ids_and_no_overlap(n_texts, n_tokens, seed):
    texts = calibration_texts(n_texts, n_tokens, tokenizer(), seed)
    assert [len(ids) for _, ids in texts] == [n_tokens] * n_texts
    assert len({name for name, _ in texts}) == n_texts
    names = [f"{row['topic']}:{row['index']}" for row in prose()]
    used: set[int] = set()
    for name, ids in texts:
        pieces = tokenizer().decode(ids).strip("\n").split("\n\n")  # the cut may fall between two paragraphs
        for place, piece in enumerate(pieces, start=names.index(name)):
            assert str(prose()[place]["text"]).startswith(piece)
            assert place not in used
            used.add(place)


def test_the_same_seed_gives_the_same_texts_and_another_seed_others():
    first, again, other = (calibration_texts(6, 128, tokenizer(), seed) for seed in (3, 3, 4))
    assert first == again
    assert {name for name, _ in first} != {name for name, _ in other}


def test_more_texts_begin_with_the_fewer():
    assert calibration_texts(12, 64, tokenizer(), 1)[:5] == calibration_texts(5, 64, tokenizer(), 1)


def test_texts_come_from_as_many_topics_as_there_are():
    topics = [name.split(":")[0] for name, _ in calibration_texts(16, 256, tokenizer(), 0)]
    assert len(set(topics)) == 16


def test_long_texts_run_on_from_topic_to_topic():
    texts = calibration_texts(4, 30_000, tokenizer(), 0)
    assert [len(ids) for _, ids in texts] == [30_000] * 4
    starts = [tuple(ids[:200]) for _, ids in texts]
    assert len(set(starts)) == 4


def test_more_text_than_there_is_is_refused_with_what_there_is():
    with pytest.raises(ConfigError, match=r"gives \d+ of that length. Lower capture.texts or capture.tokens_per_text"):
        calibration_texts(50, 30_000, tokenizer(), 0)


@pytest.mark.parametrize("n_texts, n_tokens", [(0, 8), (1, 0), (-1, 8)])
def test_nothing_asked_for_is_refused(n_texts, n_tokens):
    with pytest.raises(ConfigError, match="at least 1"):
        calibration_texts(n_texts, n_tokens, tokenizer(), 0)


def test_python_without_the_text_is_refused_with_the_mend(monkeypatch):
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    with pytest.raises(BreakevenError, match="lacks pydoc_data"):
        paragraphs()


def test_no_measured_prompt_is_among_the_texts():
    workload = WorkloadConfig("builtin", "builtin", None, None, list(CATEGORIES), 4)
    everything = " ".join(str(row["text"]) for row in prose())
    for prompt in load_prompts(workload):
        words = prompt["text"].split()
        assert not any(" ".join(words[i : i + 8]) in everything for i in range(max(1, len(words) - 7)))
