"""Reading JSON lines so that a bad line is named by its number."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

from breakeven.errors import BreakevenError

T = TypeVar("T")


def rows(lines: Iterable[bytes], source: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (line number from 1, object) for every line that is not blank.

    Raises:
        BreakevenError: a line is not UTF-8, not JSON, or not an object; names the line.
    """
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            value = json.loads(line.decode("utf-8-sig"))
        except ValueError as error:  # bad UTF-8 and bad JSON alike
            raise BreakevenError(f"{source}, line {number}: not JSON ({error}). Mend or remove the line.") from error
        if not isinstance(value, dict):
            raise BreakevenError(
                f"{source}, line {number}: {type(value).__name__} instead of an object. Mend the line."
            )
        yield number, value


def field(row: dict[str, Any], key: str, kind: type[T], where: str) -> T:
    """Return `row[key]` if it is there, of the right type, and not empty.

    Raises:
        BreakevenError: it is not; names the place and the field.
    """
    if key not in row:
        raise BreakevenError(f"{where}: field {key!r} is missing. It has: {', '.join(sorted(row)) or 'nothing'}.")
    value = row[key]
    if not isinstance(value, kind) or isinstance(value, bool):
        raise BreakevenError(f"{where}: field {key!r} is {type(value).__name__} instead of {kind.__name__}.")
    if isinstance(value, str | list) and not (value.strip() if isinstance(value, str) else value):
        raise BreakevenError(f"{where}: field {key!r} is empty. Fill it or remove the line.")
    return value
