"""Tokenizers are compared by what they do to text, not by what they are called."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from breakeven.errors import TokenizerMismatchError
from breakeven.models import tokenizers
from breakeven.models.sources.random import byte_tokenizer


def edited(**changes: object) -> PreTrainedTokenizerFast:
    """Return the byte tokenizer with sections of its JSON replaced; a key of the form model.x goes into the model."""
    state = json.loads(byte_tokenizer(64).backend_tokenizer.to_str())
    for key, value in changes.items():
        section, _, inner = key.partition("__")
        if inner:
            state[section][inner] = value
        else:
            state[section] = value
    core = Tokenizer.from_str(json.dumps(state))
    return PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<|im_end|>", pad_token="<|endoftext|>")


def vocab() -> dict[str, int]:
    return dict(json.loads(byte_tokenizer(64).backend_tokenizer.to_str())["model"]["vocab"])


def merges() -> list[list[str]]:
    return list(json.loads(byte_tokenizer(64).backend_tokenizer.to_str())["model"]["merges"])


def swapped(first: str, second: str) -> dict[str, int]:
    words = vocab()
    words[first], words[second] = words[second], words[first]
    return words


def test_names_templates_and_lengths_do_not_matter() -> None:
    ours, theirs = byte_tokenizer(64), byte_tokenizer(4096)
    theirs.name_or_path, theirs.chat_template = "somewhere/else", "{{ messages }}"
    theirs.backend_tokenizer.enable_padding(length=10)
    theirs.backend_tokenizer.enable_truncation(5)
    assert tokenizers.content_digest(ours) == tokenizers.content_digest(theirs)
    tokenizers.require_same_tokenizer(ours, theirs)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model__vocab": swapped("a", "b")}, r"token \d+ is '[ab]' in the target and '[ab]' in the draft"),
        ({"model__vocab": vocab() | {"extra": 281}}, r"token 281 is None in the target and 'extra'.*281 and 282"),
        ({"model__merges": [*merges()[1:], merges()[0]]}, "merge 0 is"),
        ({"model__merges": merges()[:-1]}, "22 merges and the draft 21"),
        ({"normalizer": {"type": "Lowercase"}}, 'normalizer differ: null in the target, {"type": "Lowercase"}'),
        (
            {"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}},
            "pre tokenizer differ",
        ),
    ],
    ids=["two ids swapped", "one token more", "merge order", "one merge less", "normalizer", "pre-tokenizer"],
)
def test_the_first_difference_is_named(changes: dict[str, object], message: str) -> None:
    with pytest.raises(TokenizerMismatchError, match=message):
        tokenizers.require_same_tokenizer(byte_tokenizer(64), edited(**changes))
    assert tokenizers.content_digest(byte_tokenizer(64)) != tokenizers.content_digest(edited(**changes))


def test_two_vocabularies_of_the_same_size_are_not_the_same() -> None:
    """The trap: comparing sizes alone lets any tokenizer of the same family size pass."""
    other = edited(model__vocab=swapped("a", "z"))
    assert len(other) == len(byte_tokenizer(64))
    with pytest.raises(TokenizerMismatchError):
        tokenizers.require_same_tokenizer(byte_tokenizer(64), other)


def test_both_ways_to_write_a_merge_are_the_same_merge() -> None:
    old_style = edited(model__merges=[" ".join(merge) for merge in merges()])
    tokenizers.require_same_tokenizer(byte_tokenizer(64), old_style)


@given(st.text(max_size=60))
def test_equal_content_means_equal_tokens(text: str) -> None:
    ours, theirs = byte_tokenizer(64), edited()
    assert tokenizers.content_digest(ours) == tokenizers.content_digest(theirs)
    assert ours.encode(text) == theirs.encode(text)
    assert ours.decode(ours.encode(text)) == text


@pytest.mark.parametrize(("rows", "real"), [(281, 281), (320, 281), (280, 280)])
def test_padding_rows_are_not_tokens(rows: int, real: int) -> None:
    assert tokenizers.real_vocab_size(byte_tokenizer(64), rows) == real


def test_a_hole_in_the_ids_does_not_hide_the_last_token() -> None:
    """Counting tokens would cut off the highest ids of a vocabulary with holes."""
    words = vocab() | {"far": 300}
    assert tokenizers.real_vocab_size(edited(model__vocab=words), 320) == 301


def test_a_slow_tokenizer_is_refused() -> None:
    class Slow:
        pass

    with pytest.raises(TokenizerMismatchError, match="not a fast tokenizer"):
        tokenizers.content(Slow())  # type: ignore[arg-type]
