"""Decision rules for KV1 to KV3, the claims on KV-cache quantization that attention error and real bits decide."""

from __future__ import annotations

import numpy as np
import pandas as pd

from breakeven.evidence.claims.facts import KV_ERROR, Claim, Facts, Finding, Verdict, number, pending
from breakeven.results import KvErrorRow

ARITHMETIC = "src/breakeven/evidence/claims/cache.py"  # the file that shows what needs no measurement
ARITHMETIC_TOLERANCE = 0.005  # relative: published gigabytes have three or four digits
SAME_BITS = 0.02  # relative: real bits per element this near to nominal count as equal
SAME_ERROR = 1e-6  # relative: errors this near are the same number
NUMBER_TOLERANCE = 0.10  # relative: another sentence and other weights of the same model move the error
OUTLIER_RATIO = 3.0  # a channel this many times the head's median channel is an outlier
MANY_HEADS, FEW_HEADS = 0.5, 0.1  # shares of heads with outliers that count as "has" and "has none"


def kv1(claim: Claim, facts: Facts) -> Finding:
    """Published sizes by arithmetic; then real bits per element of the schemes that were run.

    Contradicted: a published size misses the formula by more than 0.5 %. Partly: the arithmetic holds, but quantized
    schemes store more bits than they are named after (over 2 %), so sizes below 16 bits are too small. Reproduced:
    neither.
    """
    n = claim.numbers
    elements = 2 * n["layers"] * n["kv_heads"] * n["head_dim"]
    off = [
        bits
        for bits, gigabytes in n["gigabytes"].items()
        if abs(elements * bits / 8 * n["context_tokens"] / 1e9 / gigabytes - 1) > ARITHMETIC_TOLERANCE
    ]
    many = elements * 2 * n["request_tokens"] * n["requests"] / 1e9
    if abs(many / n["requests_gigabytes"] - 1) > ARITHMETIC_TOLERANCE:
        off.append(16)
    own = facts.costs.value("memory_bytes", part="kv_per_token")
    rows = [row for row in _overall(facts) if row["scheme"] != "post_symmetric"]
    parts = [f"16 bits: {own:.0f} bytes a token for {facts.target['name']}, as cached"] if own is not None else []
    parts += [f"{row['scheme']} {row['bits_nominal']} bits: really {row['bits_real']:.2f}" for row in _cheapest(rows)]
    measured = "; ".join(parts) or "arithmetic only"
    if off:
        return Finding("contradicted", measured, f"the formula does not give the size at {off} bits", ARITHMETIC)
    formula = f"the formula gives {elements * 2 / 1024:.0f} KiB a token in 16 bits and all published sizes"
    if not rows:
        return Finding("reproduced", measured, f"{formula}; real bits were not counted", ARITHMETIC)
    if any(abs(row["bits_real"] / row["bits_nominal"] - 1) > SAME_BITS for row in rows):
        reason = f"{formula}, but scales and minima are left out: quantized caches are larger than it says"
        return Finding("partly", measured, reason, KV_ERROR)
    return Finding("reproduced", measured, f"{formula}; scales and minima hardly matter", KV_ERROR)


def kv2(claim: Claim, facts: Facts) -> Finding:
    """The post's quantizer on this model: order of the axes, what its bits are, and what values have to do with it.

    Contradicted: at some published width per-channel keys are worse than per-token keys (intervals apart). Reproduced:
    they are better at every width (intervals apart), the four published errors are met within 10 % on the published
    model, and the quantizer has at most 2^b levels. Partly: the rest (undecided order, another model, or rows that are
    named after one bit too few).
    """
    rows = [row for row in _overall(facts) if row["scheme"] == claim.numbers["scheme"]]
    widths = [bits for bits in claim.numbers["per_token"] if {"token", "channel"} <= _key_axes(rows, bits)]
    if not widths:
        return pending("the post's quantizer was not run at the published widths")
    cells = _axis_contest(rows, widths)
    error = {(row["bits_nominal"], row["k_axis"]): row["attention_error"] for cell in cells for row in cell}
    measured = f"{facts.target['name']}, per token / per channel: " + "; ".join(
        f'"{bits} bits" {error[bits, "token"]:.3f} / {error[bits, "channel"]:.3f}' for bits in widths
    )
    notes = _quantizer_notes(rows)
    if any(_better(token, channel) for token, channel in cells):
        return Finding("contradicted", measured, "keys per channel are worse here", KV_ERROR)
    if not all(_better(channel, token) for token, channel in cells):
        reason = "; ".join(["undecided: the intervals of the two axes overlap", *notes])
        return Finding("partly", measured, reason, KV_ERROR)
    published_model = claim.numbers["model_contains"] in str(facts.target["name"])
    near = all(
        abs(error[bits, axis] / claim.numbers[f"per_{axis}"][bits] - 1) <= NUMBER_TOLERANCE for bits, axis in error
    )
    if published_model and near and not notes:
        return Finding("reproduced", measured, "order and figures as published", KV_ERROR)
    figures = (
        f"figures {'within' if near else 'not within'} 10 % of the published ones"
        if published_model
        else "the order is as published, its figures need Qwen2.5-0.5B-Instruct"
    )
    return Finding("partly", measured, "; ".join([figures, *notes]), KV_ERROR)


def kv3(claim: Claim, facts: Facts) -> Finding:
    """Per-channel keys against per-token keys at 2 to 4 nominal bits, and outlier channels of keys and values.

    (i) per channel is better: in at least half of the schemes and widths the intervals of the two attention errors are
    apart in its favour, and nowhere in the other's; (ii) outliers: at least half of the heads have a key channel of 3
    times the head's median channel, at most a tenth have such a value channel. Reproduced: both. Contradicted: neither.
    Partly: one.
    """
    cells = _axis_contest(_overall(facts), claim.numbers["widths"])
    shares = outlier_shares(facts.kv_channels)
    if not cells or not shares:
        return pending("keys were not quantized along both axes, or channel statistics are missing")
    wins = sum(_better(channel, token) for token, channel in cells)
    defeats = sum(_better(token, channel) for token, channel in cells)
    better = 2 * wins >= len(cells) and not defeats
    outliers = shares["k_post"] >= MANY_HEADS and shares["v"] <= FEW_HEADS
    gains = [
        f'"{token["bits_nominal"]} bits" {token["attention_error"] / channel["attention_error"]:.2f}x'
        for token, channel in cells
        if token["scheme"] == claim.numbers["scheme"] and channel["attention_error"] > 0
    ]
    measured = (
        f"keys per channel better in {wins}, worse in {defeats} of {len(cells)} schemes and widths"
        + (f" (the post's quantizer: {', '.join(gains)})" if gains else "")
        + "; heads with an outlier channel: "
        + ", ".join(f"{which} {share:.0%}" for which, share in shares.items())
    )
    verdict: Verdict = "reproduced" if better and outliers else "partly" if better or outliers else "contradicted"
    reason = f"per channel is {'' if better else 'not '}better; outliers are {'' if outliers else 'not '}in keys alone"
    return Finding(verdict, measured, reason, KV_ERROR)


def _axis_contest(rows: list[KvErrorRow], widths: list[int]) -> list[tuple[KvErrorRow, KvErrorRow]]:
    """Return (keys per token, keys per channel) for every scheme and width that was run along both axes."""
    cells = []
    for scheme in sorted({row["scheme"] for row in rows}):
        for bits in widths:
            same = [row for row in rows if row["scheme"] == scheme and row["bits_nominal"] == bits]
            if {"token", "channel"} <= _key_axes(same, bits):
                cells.append((_row(same, "token"), _row(same, "channel")))
    return cells


def outlier_shares(channels: pd.DataFrame) -> dict[str, float]:
    """Return, for k_pre, k_post and v, the share of heads with a channel over 3 times the head's median channel.

    Args:
        channels: data/kv_channels.parquet; `mean_abs` is the mean magnitude of a channel.
    """
    shares = {}
    for which, table in channels.groupby("which", sort=True):
        heads = table.groupby(["layer", "kv_head"])["mean_abs"]
        shares[str(which)] = float(np.mean(heads.max() / heads.median().clip(lower=1e-12) > OUTLIER_RATIO))
    return shares if {"k_post", "v"} <= set(shares) else {}


def _overall(facts: Facts) -> list[KvErrorRow]:
    """Rows over all layers and heads."""
    return [row for row in facts.kv_error if row["layer"] is None and row["kv_head"] is None]


def _key_axes(rows: list[KvErrorRow], bits: int) -> set[str]:
    return {row["k_axis"] for row in rows if row["bits_nominal"] == bits}


def _row(rows: list[KvErrorRow], axis: str) -> KvErrorRow:
    """The row with keys along this axis; with values along the same one if there is a choice."""
    return max((row for row in rows if row["k_axis"] == axis), key=lambda row: row["v_axis"] == axis)


def _better(row: KvErrorRow, other: KvErrorRow) -> bool:
    """Whether the whole interval of a row's attention error lies below the other's; unknown bounds decide nothing."""
    return number(row, "attention_error_high") < number(other, "attention_error_low")


def _quantizer_notes(rows: list[KvErrorRow]) -> list[str]:
    """What is wrong with the published labels, as seen in the rows."""
    notes = []
    if any(row["levels"] > 2 ** row["bits_nominal"] for row in rows):
        wide = min(rows, key=lambda row: row["bits_nominal"])
        notes.append(f'its "{wide["bits_nominal"]} bits" have {wide["levels"]} levels, so its rows are b+1 bits')
    pairs: dict[tuple[int, str], list[float]] = {}
    for row in rows:
        pairs.setdefault((row["bits_nominal"], row["k_axis"]), []).append(row["attention_error"])
    twice = [errors for errors in pairs.values() if len(errors) > 1]
    if twice and all(max(errors) - min(errors) <= SAME_ERROR * max(errors) for errors in twice):
        notes.append("attention weights do not depend on V, so its four rows are two")
    return notes


def _cheapest(rows: list[KvErrorRow]) -> list[KvErrorRow]:
    """At every nominal width the row with the fewest real bits."""
    widths = sorted({row["bits_nominal"] for row in rows})
    return [min((r for r in rows if r["bits_nominal"] == bits), key=lambda r: r["bits_real"]) for bits in widths]


DECISIONS = {"KV1": kv1, "KV2": kv2, "KV3": kv3}
