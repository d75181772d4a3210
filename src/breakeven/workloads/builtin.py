"""The built-in prompts: seven categories of 12, written for this project (no licence but its own)."""

from __future__ import annotations

from importlib import resources

from breakeven.config import WorkloadConfig
from breakeven.workloads import jsonl
from breakeven.workloads.prompts import require_category

_FILE = "data/builtin.jsonl"


def load(workload: WorkloadConfig) -> list[dict[str, str]]:
    """Return rows with id, category and text, in file order."""
    source = f"{__package__}/{_FILE}"
    lines = resources.files("breakeven.workloads").joinpath(_FILE).read_bytes().splitlines()
    found = []
    for number, row in jsonl.rows(lines, source):
        where = f"{source}, line {number}"
        category = require_category(where, jsonl.field(row, "category", str, where))
        found.append(
            {
                "id": jsonl.field(row, "id", str, where),
                "category": category,
                "text": jsonl.field(row, "text", str, where),
            }
        )
    return found
