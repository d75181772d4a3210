"""Numbers as words: one way to write a value, its interval and the absence of both."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import TypeGuard

NOT_MEASURED = "not measured"
_MIB = 1024.0**2
_GIB = 1024.0**3


def is_number(value: float | None) -> TypeGuard[float]:
    """Say whether a value is there and finite."""
    return value is not None and math.isfinite(value)


def number(value: float | None, digits: int = 2) -> str:
    """Write a number with fixed decimals, thousands grouped; None and NaN read "not measured"."""
    if value is None or not math.isfinite(value):
        return NOT_MEASURED
    text = f"{value:,.{digits}f}"
    return text.replace("-", "\N{MINUS SIGN}") if float(text.replace(",", "")) else f"{0:.{digits}f}"


def whole(value: float | None) -> str:
    """Write a count."""
    return number(value, 0)


def ratio(value: float | None, digits: int = 2) -> str:
    """Write a ratio, such as a speedup, with its sign of multiplication."""
    return f"{number(value, digits)}×" if is_number(value) else NOT_MEASURED


def with_interval(value: float | None, low: float | None, high: float | None, digits: int = 2, unit: str = "") -> str:
    """Write a value and its interval, "1.42 (1.30–1.55)"; the interval is left out where there is none."""
    if not is_number(value):
        return NOT_MEASURED
    text = f"{number(value, digits)}{unit}"
    if not (is_number(low) and is_number(high)):
        return text
    return f"{text} ({number(low, digits)}–{number(high, digits)})"


def milliseconds(seconds: float | None) -> float | None:
    """Convert seconds to milliseconds; None stays None."""
    return None if seconds is None else seconds * 1e3


def memory(n_bytes: float | None) -> str:
    """Write a number of bytes in the largest binary unit that keeps it at 1 or above."""
    if n_bytes is None or not math.isfinite(n_bytes):
        return NOT_MEASURED
    for unit, size in (("GiB", _GIB), ("MiB", _MIB), ("KiB", 1024.0)):
        if n_bytes >= size:
            return f"{number(n_bytes / size, 2)} {unit}"
    return f"{whole(n_bytes)} bytes"


def percent(share: float | None, digits: int = 0) -> str:
    """Write a share as a percentage."""
    return f"{number(share * 100, digits)} %" if share is not None and math.isfinite(share) else NOT_MEASURED


def listed(words: Sequence[str]) -> str:
    """Join words as prose: "a, b and c"."""
    if len(words) < 2:
        return "".join(words)
    return f"{', '.join(words[:-1])} and {words[-1]}"


def counted(n: int, one: str, many: str | None = None) -> str:
    """Write a count with its noun: "1 prompt", "2 prompts"."""
    return f"{whole(n)} {one if n == 1 else many or one + 's'}"


def setting(canonical: str | None) -> str:
    """Write a drafter's setting, stored as canonical JSON, as "layer 12, window 3"."""
    if not canonical:
        return ""
    try:
        value = json.loads(canonical)
    except json.JSONDecodeError:
        return canonical
    if not isinstance(value, dict):
        return canonical
    return ", ".join(f"{key.replace('_', ' ')} {value[key]}" for key in sorted(value))


def temperature(value: float) -> str:
    """Write a temperature."""
    return f"T\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}{value:g}"
