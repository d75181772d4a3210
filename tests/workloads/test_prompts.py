"""Traps between a prompt and its tokens: silent cuts, doubled special tokens, an answer that is not opened."""

from __future__ import annotations

import functools

import datasets
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import processors
from transformers import PreTrainedTokenizerFast

from breakeven.errors import BreakevenError, ConfigError
from breakeven.models.sources.random import byte_tokenizer
from breakeven.workloads.prompts import Prompt, check_context, encode_prompt, to_prompts

PROMPT = Prompt("qa-01", "qa", "Why does ice float?", "measured")


@functools.cache
def tokenizer() -> PreTrainedTokenizerFast:
    return byte_tokenizer(512)


def with_bos() -> PreTrainedTokenizerFast:
    """A tokenizer that opens every text with a special token, as Llama's and Gemma's do."""
    made = byte_tokenizer(512)
    name = made.convert_ids_to_tokens(made.eos_token_id)
    made.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{name} $A", special_tokens=[(name, made.eos_token_id)]
    )
    made.bos_token = name
    return made


def dataset(*rows: tuple[str, str, str]) -> datasets.Dataset:
    return datasets.Dataset.from_list([{"id": i, "category": c, "text": i, "split": s} for i, c, s in rows])


def test_chat_prompt_ends_with_the_opening_of_the_answer():
    text = tokenizer().decode(encode_prompt(PROMPT, tokenizer()))
    assert PROMPT.text in text
    assert text.rstrip().endswith("assistant")
    assert text.count("<|im_start|>") == 2


def test_chat_template_brings_its_own_special_tokens_and_no_second_opening():
    made = with_bos()
    made.chat_template = "{{ bos_token }}{{ messages[0]['content'] }}{% if add_generation_prompt %}>{% endif %}"
    ids = encode_prompt(PROMPT, made)
    assert ids.count(made.bos_token_id) == 1
    assert made.decode(ids).endswith("?>")


def test_without_a_template_the_text_is_plain_with_the_tokenizers_opening():
    made = with_bos()
    made.chat_template = None
    ids = encode_prompt(PROMPT, made)
    assert ids[0] == made.bos_token_id
    assert made.decode(ids[1:]) == PROMPT.text


def test_long_prompt_is_not_cut_at_the_tokenizers_own_limit():
    long = Prompt("long", "qa", "word " * 2000, "measured")
    assert tokenizer().decode(encode_prompt(long, tokenizer())).count("word") == 2000


def test_prompt_without_tokens_is_refused():
    made = byte_tokenizer(64)
    made.chat_template = None
    with pytest.raises(BreakevenError, match="qa-02 has no tokens"):
        encode_prompt(Prompt("qa-02", "qa", "", "measured"), made)


@given(st.dictionaries(st.text("abc", min_size=1), st.integers(1, 300), min_size=1), st.integers(1, 200))
def test_context_check_names_exactly_the_prompts_that_do_not_fit(counts, new):
    too_long = [name for name, count in counts.items() if count + new > 256]
    if not too_long:
        check_context(counts, 256, max_new_tokens=new)
        return
    with pytest.raises(ConfigError) as caught:
        check_context(counts, 256, max_new_tokens=new)
    assert ", ".join(f"{name} ({counts[name]})" for name in too_long) + "." in str(caught.value)


def test_prompt_that_just_fits_is_taken():
    check_context({"a": 200}, 256, max_new_tokens=56)
    with pytest.raises(ConfigError, match=r"1 of 1 prompts .* a \(200\)"):
        check_context({"a": 200}, 256, max_new_tokens=57)


def test_first_prompts_of_each_category_in_file_order():
    prompts = dataset(
        ("a", "qa", "measured"), ("b", "rag", "calibration"), ("c", "qa", "measured"), ("d", "rag", "measured")
    )
    assert [p.id for p in to_prompts(prompts, "measured", 1)] == ["a", "d"]


def test_fewer_prompts_than_asked_is_refused_not_shortened():
    prompts = dataset(("a", "qa", "measured"), ("b", "qa", "measured"), ("c", "rag", "measured"))
    with pytest.raises(ConfigError, match=r"category 'rag' has 1 measured prompts, but 2 were asked for"):
        to_prompts(prompts, "measured", 2)


def test_category_with_no_prompt_of_the_split_is_refused_not_skipped():
    with pytest.raises(ConfigError, match="category 'qa' has 0 measured"):
        to_prompts(dataset(("a", "qa", "calibration"), ("b", "rag", "measured")), "measured", 1)


def test_zero_prompts_is_refused():
    with pytest.raises(ConfigError, match="at least 1"):
        to_prompts(dataset(("a", "qa", "measured")), "measured", 0)
