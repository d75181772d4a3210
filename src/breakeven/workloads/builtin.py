"""The built-in prompts: seven categories of 12, written for this project (no licence but its own)."""

from __future__ import annotations

from breakeven.workloads import jsonl
from breakeven.workloads.prompts import require_category

FILE = "data/builtin.jsonl"  # inside the package breakeven.workloads


def load(content: bytes, source: str) -> list[dict[str, str]]:
    """Return rows with id, category and text, in file order.

    Args:
        content: JSON lines with id, category and text.
        source: their name in messages.

    Raises:
        ConfigError: an unknown category.
        BreakevenError: a line is malformed.
    """
    found = []
    for number, row in jsonl.rows(content.splitlines(), source):
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
