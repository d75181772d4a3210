"""The verdict on KV-cache quantization in plain words, computed from kv_error.json."""

from __future__ import annotations

from collections.abc import Sequence

from breakeven.reporting.data import kv_by_key_axis, kv_overall
from breakeven.reporting.words import is_number, listed, number, with_interval
from breakeven.results import KvErrorRow

POST_SCHEME = "post_symmetric"
# Output errors that the verdict asks for: the fewest real bits that stay below each.
OUTPUT_ERROR_TARGETS = (0.10, 0.02)


def kv_lines(rows: Sequence[KvErrorRow]) -> list[str]:
    """Return what the measured errors say, at most a handful of sentences."""
    return [line for line in (*_cheapest(rows), _post_name(rows), _key_axis(rows)) if line]


def _cheapest(rows: Sequence[KvErrorRow]) -> list[str]:
    """Say which scheme keeps the output error below each target at the fewest real bits."""
    best: dict[str, list[float]] = {}
    for target in OUTPUT_ERROR_TARGETS:
        # A row counts only with its whole interval below the target, where it has one.
        fitting = [row for row in kv_overall(rows) if _upper(row) <= target]
        if fitting:
            row = min(fitting, key=lambda row: (row["bits_real"], row["output_error_both"]))
            best.setdefault(_described(row), []).append(target)
    lines = [
        f"KV cache: the fewest real bits with an output error below {listed([f'{t:g}' for t in targets])} are {text}."
        for text, targets in best.items()
    ]
    if lines or not kv_overall(rows):
        return lines
    least = min(kv_overall(rows), key=lambda row: row["output_error_both"])
    error = f"{number(least['output_error_both'], 3)} at {number(least['bits_real'])} real bits ({_name(least)})"
    limit = f"{max(OUTPUT_ERROR_TARGETS):g}"
    return [f"KV cache: no scheme in this run keeps the output error below {limit}; the smallest is {error}."]


def _described(row: KvErrorRow) -> str:
    error = with_interval(row["output_error_both"], row["output_error_both_low"], row["output_error_both_high"], 3)
    return f"{number(row['bits_real'])} per element, with {_name(row)}: output error {error}"


def _upper(row: KvErrorRow) -> float:
    high = row["output_error_both_high"]
    return high if is_number(high) else row["output_error_both"]


def _post_name(rows: Sequence[KvErrorRow]) -> str:
    """Say how many levels the post's lowest setting really has, and which correct quantizer it equals."""
    unique = kv_by_key_axis(rows)
    post = [row for row in unique if row["scheme"] == POST_SCHEME]
    if not post:
        return ""
    row = min(post, key=lambda row: (row["bits_nominal"], row["k_axis"]))
    if row["levels"] <= 2 ** row["bits_nominal"]:
        return ""
    line = (
        f"The post's “{row['bits_nominal']} bits” have {row['levels']} levels, more than so many bits can name: they "
        f"take {number(row['k_bits_real'])} real bits per key element"
    )
    same = [
        other
        for other in unique
        if other["scheme"] != POST_SCHEME and other["levels"] == row["levels"] and other["k_axis"] == row["k_axis"]
    ]
    if not same:
        return line + "."
    twin = min(same, key=lambda other: abs(other["attention_error"] - row["attention_error"]))
    errors = f"{number(row['attention_error'], 3)} and {number(twin['attention_error'], 3)}"
    peer = f"{twin['scheme']} at {twin['bits_nominal']} bits, which has as many ({errors})"
    return f"{line}. Compare its attention error per {row['k_axis']} with {peer}."


def _key_axis(rows: Sequence[KvErrorRow]) -> str:
    """Compare a scale per channel with one per token for keys, at the fewest bits of the most accurate scheme."""
    unique = [row for row in kv_by_key_axis(rows) if row["scheme"] != POST_SCHEME] or kv_by_key_axis(rows)
    by_token = {(row["scheme"], row["bits_nominal"]): row for row in unique if row["k_axis"] == "token"}
    pairs = [
        (row, by_token[row["scheme"], row["bits_nominal"]])
        for row in unique
        if row["k_axis"] == "channel"
        and row["attention_error"] > 0
        and (row["scheme"], row["bits_nominal"]) in by_token
    ]
    if not pairs:
        return ""
    channel, token = min(pairs, key=lambda pair: (pair[0]["bits_nominal"], pair[0]["attention_error"]))
    gain = token["attention_error"] / channel["attention_error"]
    if gain >= 1.0:
        comparison = f"{number(gain)} times smaller than with one scale per token"
    else:
        comparison = f"{number(1 / gain)} times larger than with one scale per token"
    return (
        f"Keys with one scale per channel have an attention error {comparison} ({channel['scheme']} at "
        f"{channel['bits_nominal']} bits, {number(channel['k_bits_real'])} against {number(token['k_bits_real'])} "
        "real bits)."
    )


def _name(row: KvErrorRow) -> str:
    return f"{row['scheme']} at {row['bits_nominal']} bits, keys per {row['k_axis']}, values per {row['v_axis']}"
