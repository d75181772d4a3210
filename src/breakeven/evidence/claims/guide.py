"""Decision rules for GD1 to GD11, the claims of the guide to speculative decoding."""

from __future__ import annotations

from statistics import median

from breakeven.costs.predictors import break_even_alpha
from breakeven.evidence.claims.facts import (
    ACCEPTANCE,
    PREDICTORS,
    SPECULATIVE,
    Claim,
    Facts,
    Finding,
    Verdict,
    best,
    number,
    pending,
    side_of_one,
    speedup_text,
)
from breakeven.evidence.claims.post_table import TABLE_TOLERANCE
from breakeven.evidence.claims.speculation import LAW_TOLERANCE, curve_text, position_rows
from breakeven.results import SpeculativeRow

CURVE_TOLERANCE = 0.05  # absolute, on acceptance rates published as whole percents
OWN_MEMORY_SHARE = 0.01  # of the target's weights: below it a drafter needs no second model in memory


def gd1(claim: Claim, facts: Facts) -> Finding:
    """One draft step a round (r K / (1 + c)) against the measured speedups, with r accepted / drafted.

    The published example is checked by arithmetic first (0.05). Measured: reproduced if the median relative error is
    within 10 %, else contradicted. Nothing measured: partly, since the example follows from a formula that charges one
    draft step for K.
    """
    n = claim.numbers
    as_published = n["acceptance"] * n["k"] / (1 + n["c"])
    per_draft = n["acceptance"] * n["k"] / (1 + n["k"] * n["c"])
    follows = abs(as_published - n["speedup"]) <= TABLE_TOLERANCE
    arithmetic = f"the example {'follows' if follows else 'does not follow'} from the formula ({as_published:.2f})"
    arithmetic += f", but {n['k']} drafts need {n['k']} draft steps: {per_draft:.2f}"
    errors = []
    for row in facts.overall:
        acceptance, c = row["alpha_accepted_per_drafted"], row["c"]
        if acceptance is not None and c is not None:
            errors.append(acceptance * row["k"] / (1.0 + c) / row["speedup_total"] - 1.0)
    if not errors:
        return Finding("partly" if follows else "contradicted", "no speedup measured", arithmetic, PREDICTORS)
    middle = median(abs(error) for error in errors)
    measured = f"off by {min(errors):+.0%} to {max(errors):+.0%} over {len(errors)} measured speedups"
    measured += f" (median {middle:.0%} either way)"
    verdict: Verdict = "reproduced" if middle <= LAW_TOLERANCE else "contradicted"
    return Finding(verdict, measured, f"{arithmetic}; it also forgets the bonus token", SPECULATIVE)


def gd2(claim: Claim, facts: Facts) -> Finding:
    """Agreement and acceptance by draft position of a separate draft model of the same family.

    Pending without such a drafter (the curves of the others are shown). Reproduced: the interval of top-1 agreement
    meets 80-95 % and the curve falls and stays within 5 points of 90/85/80 %. Contradicted: neither. Partly: one.
    """
    drafter = claim.numbers["drafter"]
    curves = [text for name in sorted({r["drafter"] for r in facts.overall}) if (text := curve_text(facts, name))]
    measured = "conditional acceptance by draft position: " + "; ".join(curves) if curves else "no drafter was run"
    chosen = best([row for row in facts.overall if row["drafter"] == drafter and row["temperature"] == 0.0])
    if chosen is None:
        reason = "speaks of a separate draft model of the same family; none was run greedily"
        return pending(reason, measured, ACCEPTANCE if curves else None)
    low, high = claim.numbers["agreement"]
    agrees = number(chosen, "alpha_low") <= high and number(chosen, "alpha_high") >= low
    values = [value for _, value in sorted(position_rows(facts, chosen))]
    ends = [values[0], values[len(values) // 2], values[-1]] if values else []
    near = all(abs(v - p) <= CURVE_TOLERANCE for v, p in zip(ends, claim.numbers["curve"], strict=False))
    shaped = len(values) > 1 and values[0] > values[-1] and near
    reason = (
        f"top-1 agreement {'in' if agrees else 'outside'} the range; curve {'as' if shaped else 'not as'} published"
    )
    verdict: Verdict = "reproduced" if agrees and shaped else "partly" if agrees or shaped else "contradicted"
    return Finding(verdict, measured, reason, ACCEPTANCE)


def gd7(claim: Claim, facts: Facts) -> Finding:
    """Is 70 % acceptance the threshold?

    Acceptance is that of a tested token: it is never below accepted / drafted, so this reading is the kinder one.

    Contradicted: some run below it gains (whole interval above 1). Reproduced: every decided run below it loses and
    every decided run at or above it gains, with at least one on each side. Partly: the rest.
    """
    limit = claim.numbers["acceptance"]
    rows = [row for row in facts.overall if row["alpha"] is not None]
    if not rows:
        return pending("no drafter drafted")
    below = [row for row in rows if number(row, "alpha") < limit]
    paying = [row for row in below if side_of_one(row) > 0]
    losing = [row for row in below if side_of_one(row) < 0]
    above = [side_of_one(row) for row in rows if row not in below]
    thresholds = "; ".join(_break_even_text(row) for row in _one_each(rows))
    measured = f"{len(paying)} of {len(below)} runs below {limit:.0%} gain, {len(losing)} lose; {thresholds}"
    if paying:
        top = max(paying, key=lambda row: row["speedup"])
        reason = f"{speedup_text(top)} at {number(top, 'alpha'):.0%}: the threshold depends on c, v and k"
        return Finding("contradicted", measured, reason, SPECULATIVE)
    if losing and 1 in above and -1 not in above:
        return Finding("reproduced", measured, "runs below lose and runs above gain", SPECULATIVE)
    if losing and not above:
        reason = "no run below gains, but none reached it either, so the threshold itself is not shown"
        return Finding("partly", measured, reason, SPECULATIVE)
    return Finding("partly", measured, "undecided: intervals hold 1, or runs above it lose too", SPECULATIVE)


def gd10(claim: Claim, facts: Facts) -> Finding:
    """Memory that each drafter needs beside the target; another tokenizer is refused before any work.

    Reproduced: every drafter that was run needs a second model (over 1 % of the target's weights). Contradicted would
    need a drafter with another tokenizer, which this project refuses, so a drafter without own weights makes it partly.
    """
    if not facts.overall:
        return pending("no drafter was run")
    weights = facts.costs.value("memory_bytes", part="weights") or _stored_bytes(facts)
    needs = {row["drafter"]: row["drafter_bytes"] for row in facts.overall}
    measured = "own memory: " + ", ".join(f"{name} {size / 1e6:.1f} MB" for name, size in sorted(needs.items()))
    measured += f" (target weights {weights / 1e6:.0f} MB)"
    light = [name for name, size in sorted(needs.items()) if size < OWN_MEMORY_SHARE * weights]
    refused = "a draft with another tokenizer is refused by content"
    if light:
        return Finding("partly", measured, f"{refused}; {', '.join(light)} needs no second model", SPECULATIVE)
    return Finding("reproduced", measured, f"{refused}; every drafter keeps its own weights in memory", SPECULATIVE)


def gd11(claim: Claim, facts: Facts) -> Finding:
    """The ranking of drafters by speedup; undecided until trained, distilled and quantized drafters take part."""
    rows = [best([r for r in facts.overall if r["drafter"] == name]) for name in {r["drafter"] for r in facts.overall}]
    ranked = sorted((row for row in rows if row is not None), key=lambda row: -row["speedup"])
    if not ranked:
        return pending(f"waits for {claim.waits_for}")
    measured = "so far: " + "; ".join(speedup_text(row) for row in ranked)
    return pending(f"waits for {claim.waits_for}", measured, SPECULATIVE)


def _one_each(rows: list[SpeculativeRow]) -> list[SpeculativeRow]:
    chosen = [
        best([row for row in rows if row["drafter"] == name]) for name in sorted({row["drafter"] for row in rows})
    ]
    return [row for row in chosen if row is not None]


def _break_even_text(row: SpeculativeRow) -> str:
    """State at which per-token acceptance this run would break even, with the cost terms behind it."""
    if row["c"] is None or row["v_verify"] is None or row["overhead"] is None or row["draft_rate"] <= 0:
        return f"{row['drafter']}: not timed"
    # Silent rounds gain nothing, so what they and all rounds cost beyond a step falls on the drafting ones.
    verify = 1.0 + (row["v_verify"] - 1.0) / row["draft_rate"]
    overhead = row["overhead"] / row["draft_rate"]
    alpha = break_even_alpha(row["k"], row["c"], max(verify, 0.0), overhead)
    at = "no acceptance" if alpha is None else f"alpha {alpha:.0%}"
    terms = f"c {row['c']:.2f}, v {row['v_verify']:.2f}, overhead {row['overhead']:.2f}"
    return f"{row['drafter']} k={row['k']} breaks even at {at} (has {number(row, 'alpha'):.0%}; {terms})"


def _stored_bytes(facts: Facts) -> float:
    return float(sum(file["bytes"] for file in facts.target["files"].values()))


DECISIONS = {"GD1": gd1, "GD2": gd2, "GD7": gd7, "GD10": gd10, "GD11": gd11}
