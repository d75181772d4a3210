"""Traps of data inside a wheel: damaged compression, fields that must not be read, code that must not run."""

from __future__ import annotations

import gzip
import json

import pytest

from breakeven.errors import BreakevenError
from breakeven.workloads import human_eval

TASKS = [
    {"task_id": f"HumanEval/{i}", "prompt": f"def f{i}(x):\n", "canonical_solution": "raise SystemExit(7)", "test": "0"}
    for i in range(3)
]
PLAIN = "\n".join(map(json.dumps, TASKS)).encode()


@pytest.mark.parametrize("content", [PLAIN, gzip.compress(PLAIN)], ids=["plain", "gzip"])
def test_prompts_come_out_as_code_and_solutions_stay_in(content):
    rows = human_eval.load(content, "h")
    assert rows == [{"id": t["task_id"], "category": "code", "text": t["prompt"]} for t in TASKS]


@pytest.mark.parametrize("cut", [12, -4])
def test_truncated_file_is_no_shorter_workload(cut):
    with pytest.raises(BreakevenError, match="h is damaged"):
        human_eval.load(gzip.compress(PLAIN)[:cut], "h")


def test_flipped_byte_is_found():
    packed = bytearray(gzip.compress(PLAIN))
    packed[-6] ^= 1  # in the checksum
    with pytest.raises(BreakevenError, match="damaged"):
        human_eval.load(bytes(packed), "h")


def test_task_without_prompt_is_named_by_its_line():
    with pytest.raises(BreakevenError, match="h, line 1: field 'prompt' is missing"):
        human_eval.load(b'{"task_id": "HumanEval/0"}', "h")
