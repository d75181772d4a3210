"""Traps of JSON lines: an error that does not say where, blank lines, marks of other editors, wrong types."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakeven.errors import BreakevenError
from breakeven.workloads import jsonl

JSON = st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner, max_size=3))


@given(st.lists(st.dictionaries(st.text(), JSON, max_size=4), max_size=6), st.lists(st.integers(0, 6), max_size=4))
def test_what_was_written_comes_back_with_its_line_number(objects, blanks):
    lines = [json.dumps(value, ensure_ascii=False).encode() for value in objects]
    for place in blanks:
        lines.insert(min(place, len(lines)), b"  \t")
    read = list(jsonl.rows(b"\n".join(lines).splitlines(), "f"))
    assert [value for _, value in read] == objects
    assert [number for number, _ in read] == [n for n, line in enumerate(lines, start=1) if line.strip()]


def test_unicode_line_separators_inside_a_string_end_no_line():
    content = '{"a": "one\u2028two\x85three\x0cfour"}\r\n{"a": "five"}'.replace("\x0c", "\\f").encode()
    assert [value["a"] for _, value in jsonl.rows(content.splitlines(), "f")] == [
        "one\u2028two\x85three\x0cfour",
        "five",
    ]


def test_byte_order_mark_is_no_error():
    assert list(jsonl.rows([b'\xef\xbb\xbf{"a": 1}'], "f")) == [(1, {"a": 1})]


@pytest.mark.parametrize(
    "line, reason",
    [(b"{", "not JSON"), (b"[1]", "list instead of"), (b"\xff{}", "not JSON"), (b'"a"', "str instead of")],
)
def test_malformed_line_is_named_by_its_number(line, reason):
    with pytest.raises(BreakevenError, match=f"questions, line 3: {reason}"):
        list(jsonl.rows([b"{}", b"", line], "questions"))


@pytest.mark.parametrize(
    "row, kind, reason",
    [
        ({}, str, "'x' is missing"),
        ({"x": 1}, str, "int instead of str"),
        ({"x": True}, int, "bool instead of int"),
        ({"x": None}, str, "NoneType instead of str"),
        ({"x": " \n"}, str, "empty"),
        ({"x": []}, list, "empty"),
    ],
)
def test_field_of_the_wrong_kind_is_refused(row, kind, reason):
    with pytest.raises(BreakevenError, match=f"line 9: .*{reason}"):
        jsonl.field(row, "x", kind, "line 9")


def test_zero_is_a_value_not_an_empty_field():
    assert jsonl.field({"x": 0}, "x", int, "line 1") == 0
