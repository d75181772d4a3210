"""Prompts from a Spec-Bench question file (JSON lines with question_id, category, turns).

Spec-Bench (Xia et al. 2024, https://arxiv.org/abs/2401.07851) asks the second turn after the answer to the first;
here only the first turn is used, so that every prompt costs one prefill and results do not depend on an earlier answer.
"""

from __future__ import annotations

from itertools import zip_longest

from breakeven.errors import ConfigError
from breakeven.workloads import jsonl

# Spec-Bench's multi-turn part is MT-bench, whose eight topics it keeps as category names.
_CATEGORY_OF = {
    **dict.fromkeys(
        ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities"), "multi_turn"
    ),
    "translation": "translation",
    "summarization": "summarization",
    "qa": "qa",
    "math_reasoning": "math",
    "rag": "rag",
}


def load(content: bytes, source: str) -> list[dict[str, str]]:
    """Return rows with id, category and text; the topics of multi_turn take turns, the rest stays in file order.

    Args:
        content: the question file.
        source: its name in messages.

    Raises:
        ConfigError: a category that Spec-Bench does not have.
        BreakevenError: a line is malformed.
    """
    by_topic: dict[str, list[dict[str, str]]] = {}
    for number, row in jsonl.rows(content.splitlines(), source):
        where = f"{source}, line {number}"
        topic = jsonl.field(row, "category", str, where)
        if topic not in _CATEGORY_OF:
            raise ConfigError(f"{where}: unknown category {topic!r}. Valid: {', '.join(sorted(_CATEGORY_OF))}.")
        turns = jsonl.field(row, "turns", list, where)
        text = jsonl.field({"turns[0]": turns[0]}, "turns[0]", str, where)
        question = jsonl.field(row, "question_id", int, where)
        by_topic.setdefault(topic, []).append(
            {"id": f"spec_bench-{question}", "category": _CATEGORY_OF[topic], "text": text}
        )
    # The file lists MT-bench topic by topic: its first prompts alone would be nothing but writing.
    rounds = zip_longest(*by_topic.values())
    return [row for taken in rounds for row in taken if row is not None]
