"""Traps of Spec-Bench's file: MT-bench's topics, first turns only, a file sorted by topic."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from breakeven.errors import BreakevenError, ConfigError
from breakeven.workloads import spec_bench

DEV = Path(__file__).parents[3] / "shared" / "data" / "spec_bench_dev.jsonl"
TOPICS = ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities")


def question(number: int, category: str, *turns: str) -> dict[str, object]:
    return {"question_id": number, "category": category, "turns": list(turns) or [f"question {number}"]}


def content(*questions: dict[str, object]) -> bytes:
    return "\n".join(map(json.dumps, questions)).encode()


def test_mt_bench_math_is_multi_turn_and_math_reasoning_is_math():
    rows = spec_bench.load(content(question(1, "math"), question(2, "math_reasoning")), "q")
    assert {row["id"]: row["category"] for row in rows} == {"spec_bench-1": "multi_turn", "spec_bench-2": "math"}


def test_topics_of_multi_turn_take_turns_so_that_calibration_is_not_one_topic():
    sorted_by_topic = [question(10 * i + j, topic) for i, topic in enumerate(TOPICS) for j in range(3)]
    rows = spec_bench.load(content(*sorted_by_topic), "q")
    first = [int(row["id"].removeprefix("spec_bench-")) // 10 for row in rows[:8]]
    assert first == list(range(8))
    assert len(rows) == 24


def test_topics_of_unequal_length_lose_no_question():
    rows = spec_bench.load(content(question(1, "qa"), question(2, "rag"), question(3, "qa"), question(4, "qa")), "q")
    assert sorted(row["id"] for row in rows) == [f"spec_bench-{i}" for i in (1, 2, 3, 4)]
    assert [row["id"] for row in rows if row["category"] == "qa"] == ["spec_bench-1", "spec_bench-3", "spec_bench-4"]


def test_only_the_first_turn_is_asked():
    assert spec_bench.load(content(question(1, "writing", "first", "second")), "q")[0]["text"] == "first"


@pytest.mark.parametrize(
    "row, error, reason",
    [
        (question(1, "poetry"), ConfigError, "unknown category 'poetry'. Valid: coding, .*writing"),
        ({"category": "qa", "turns": ["t"]}, BreakevenError, "'question_id' is missing"),
        ({"question_id": 1, "category": "qa", "turns": []}, BreakevenError, "'turns' is empty"),
        ({"question_id": 1, "category": "qa", "turns": [3]}, BreakevenError, r"turns\[0\]' is int"),
        ({"question_id": 1, "category": "qa", "turns": "t"}, BreakevenError, "'turns' is str instead of list"),
    ],
)
def test_malformed_question_is_named_by_its_line(row, error, reason):
    with pytest.raises(error, match=f"q, line 2: .*{reason}"):
        spec_bench.load(content(question(9, "qa"), row), "q")


def test_the_real_file():
    if not DEV.is_file():
        pytest.skip(f"{DEV} is not here: the loader was not tried on real questions")
    rows = spec_bench.load(DEV.read_bytes(), "dev")
    expected = ("multi_turn", "translation", "summarization", "qa", "math", "rag")
    assert Counter(row["category"] for row in rows) == dict.fromkeys(expected, 40)
    assert len({row["id"] for row in rows}) == 240
