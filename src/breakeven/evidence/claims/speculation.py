"""Decision rules for SD1 to SD10, the claims of the post on speculative decoding."""

from __future__ import annotations

import math

from breakeven.evidence.claims.facts import (
    AUDITS,
    COSTS,
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
from breakeven.results import SpeculativeRow

LAW_TOLERANCE = 0.10  # relative error up to which a predicted speedup counts as right
FLAT_V = 1.2  # a pass that costs up to this many steps costs "about as much as one"
LOSSLESS_AUDITS = ("greedy_outputs_identical_or_explained", "no_unexplained_divergence", "acceptance_matches_sum_min")


def sd1(claim: Claim, facts: Facts) -> Finding:
    """Law against measurement, over every drafter, k and temperature.

    alpha is accepted / drafted at that k, the only reading under which the law is exact. Contradicted: some speedup
    lies above 1 (whole interval) though alpha <= c. Partly: the interval of no row excludes 1, or alpha > c without a
    gain, or a prediction that misses `speedup_total` by more than 10 % and lies outside the measured interval.
    Reproduced: none of these.
    """
    rows = [row for row in facts.overall if row["predicted_post"] is not None and row["c"] is not None]
    if not rows:
        return pending("no drafter was both run and timed")
    errors = [number(row, "predicted_post") / row["speedup_total"] - 1.0 for row in rows]
    gains = [row for row in rows if side_of_one(row) > 0]
    losses = [row for row in rows if side_of_one(row) < 0]
    unneeded = [row for row in gains if not _above_cost(row)]
    useless = [row for row in losses if _above_cost(row)]
    decided = len(gains) + len(losses)
    aware = [abs(row["residual_cost_aware"]) for row in rows if row["residual_cost_aware"] is not None]
    measured = (
        f"sign of alpha - c right in {decided - len(unneeded) - len(useless)} of {decided} decided cases "
        f"({len(rows)} measured); the law's speedup is off by {min(errors):+.0%} to {max(errors):+.0%}"
    )
    measured += f", the cost-aware one by up to {max(aware):.1%}" if aware else ""
    verdict: Verdict = "partly"
    if unneeded:
        verdict, reason = "contradicted", f"a gain without alpha > c: {_names(unneeded)}"
    elif not decided:
        reason = "undecided: every interval holds 1"
    elif useless:
        reason = f"alpha > c is not enough: {_names(useless)}; verification and overhead take the gain"
    elif misses := [i for i, row in enumerate(rows) if abs(errors[i]) > LAW_TOLERANCE and _outside(row)]:
        worst = max(misses, key=lambda i: abs(errors[i]))
        reason = f"the sign holds, the figure does not: {errors[worst]:+.0%} for {speedup_text(rows[worst])}"
    else:
        verdict, reason = "reproduced", "sign and figure hold in every case"
    return Finding(verdict, measured, reason, SPECULATIVE)


def sd5(claim: Claim, facts: Facts) -> Finding:
    """Losslessness by the audits: greedy outputs equal or explained, acceptance equal to sum_y min(p, q).

    Contradicted if one of them failed; partly if only greedy decoding or only sampling was run; else reproduced.
    """
    seen = {row["audit"]: row for row in facts.audits if row["audit"] in LOSSLESS_AUDITS}
    temperatures = {row["temperature"] for row in facts.overall if row["lossless"]}
    if not seen or not temperatures:
        return pending("no lossless drafter was run")
    measured = "; ".join(row["detail"] for row in seen.values())
    failed = [name for name, row in seen.items() if not row["passed"]]
    if failed or len(seen) < len(LOSSLESS_AUDITS):
        missing = failed or [name for name in LOSSLESS_AUDITS if name not in seen]
        return Finding("contradicted" if failed else "partly", measured, f"failed: {', '.join(missing)}", AUDITS)
    if 0.0 not in temperatures or max(temperatures) == 0.0:
        only = "greedy decoding" if max(temperatures) == 0.0 else "sampling"
        return Finding("partly", measured, f"shown for {only} only; run both kinds of temperatures", AUDITS)
    reason = "greedy outputs are those of plain decoding up to near ties, and sampling accepts as often as it must"
    return Finding("reproduced", measured, reason, AUDITS)


def sd6(claim: Claim, facts: Facts) -> Finding:
    """Speedup of each family that was run against the claimed range, at its calibrated k.

    A family agrees if its speedup lies in the range, differs if the whole interval lies outside, else it is undecided.
    Reproduced: all five families were run and agree. Contradicted: every family that was run differs. Partly: the rest.
    """
    agree: list[str] = []
    differ: list[str] = []
    undecided: list[str] = []
    for family, (low, high) in claim.numbers.items():
        row = best([row for row in facts.overall if row["drafter"] == family])
        if row is None:
            continue
        # Without an interval (one prompt) NaN compares false: undecided.
        apart = number(row, "speedup_low") > high or number(row, "speedup_high") < low
        text = f"{speedup_text(row)}, claimed {low:g}-{high:g}x"
        (agree if low <= row["speedup"] <= high else differ if apart else undecided).append(text)
    run = len(agree) + len(differ) + len(undecided)
    if not run:
        return pending("none of the families was run")
    waiting = (
        f"{len(claim.numbers) - run} of {len(claim.numbers)} families were not run; exits are untrained, and prompt "
    )
    waiting += "lookup stands in for Lookahead"
    measured = "; ".join([*agree, *undecided, *differ])
    if len(differ) == run:
        return Finding(
            "contradicted", measured, f"no family that was run reaches or meets its range; {waiting}", SPECULATIVE
        )
    if len(agree) < len(claim.numbers):
        counts = f"{len(agree)} of {run} families that were run agree, {len(undecided)} undecided"
        return Finding("partly", measured, f"{counts}; {waiting}", SPECULATIVE)
    return Finding("reproduced", measured, "all families lie in their range", SPECULATIVE)


def sd7(claim: Claim, facts: Facts) -> Finding:
    """v(m), the cost of a target pass over m tokens in steps.

    Reproduced: v(m) stays within 1.2 for every timed m and context. Contradicted: v(2) lies above 1.2 (whole interval)
    at every context. Partly: flat up to some m only.
    """
    curves = facts.costs.plain_curve()
    if not curves or all(max(curve) < 2 for curve in curves.values()):
        return pending("v(m) was not timed")
    parts, flats, steep = [], [], []
    for context, curve in sorted(curves.items()):
        flat = 1
        for m in sorted(curve):
            if curve[m].value > FLAT_V:
                break
            flat = m
        flats.append(flat == max(curve))
        two = curve[min(m for m in curve if m > 1)]
        steep.append((two.value if math.isnan(two.low) else two.low) > FLAT_V)
        shown: list[int] = [m for m in (2, 5, 9, 16) if m in curve] or [max(curve)]
        parts.append(
            f"at {context} tokens "
            + ", ".join(f"v({m}) = {curve[m].value:.2f}" for m in shown)
            + f", within {FLAT_V:g} up to m = {flat}"
        )
    verdict: Verdict = "reproduced" if all(flats) else "contradicted" if all(steep) else "partly"
    reasons = {
        "reproduced": "a pass over all timed lengths costs about one step",
        "contradicted": "already the second token of a pass costs much",
        "partly": "true for short drafts on this machine only",
    }
    return Finding(verdict, "; ".join(parts), reasons[verdict], COSTS)


def sd9(claim: Claim, facts: Facts) -> Finding:
    """Acceptance of code and mathematics against the mean of the other categories, drafter by drafter.

    A comparison is decided if the task's interval of alpha excludes that mean. Reproduced: all are decided as lower.
    Contradicted: none is lower and at least half are higher. Partly: mixed, or mostly undecided.
    """
    lower, higher, open_, parts = 0, 0, 0, []
    for drafter in sorted({row["drafter"] for row in facts.overall}):
        chosen = best([row for row in facts.overall if row["drafter"] == drafter])
        assert chosen is not None
        same = [row for row in facts.speculative if _same_run(row, chosen) and row["category"] != "all"]
        others = [
            row["alpha"] for row in same if row["category"] not in claim.numbers["tasks"] and row["alpha"] is not None
        ]
        for row in same:
            if row["category"] not in claim.numbers["tasks"] or row["alpha"] is None or not others:
                continue
            mean = sum(others) / len(others)
            below, above = number(row, "alpha_high") < mean, number(row, "alpha_low") > mean
            lower, higher, open_ = lower + below, higher + above, open_ + (not below and not above)
            sign = "lower" if below else "higher" if above else "undecided"
            parts.append(f"{drafter} {row['category']} {row['alpha']:.2f} against {mean:.2f} ({sign})")
    if not parts:
        return pending("acceptance by category was not measured")
    measured, counts = "; ".join(parts), f"{lower} lower, {higher} higher, {open_} undecided"
    if lower and not higher and not open_:
        return Finding("reproduced", measured, f"accepted less often: {counts}", SPECULATIVE)
    if not lower and higher >= open_ + 1:
        return Finding("contradicted", measured, f"none is accepted less often: {counts}", SPECULATIVE)
    return Finding("partly", measured, f"no clear order: {counts}", SPECULATIVE)


def _outside(row: SpeculativeRow) -> bool:
    """Whether the law's prediction lies outside the interval of the measured speedup."""
    predicted = number(row, "predicted_post")
    return predicted < number(row, "speedup_low") or predicted > number(row, "speedup_high")


def _above_cost(row: SpeculativeRow) -> bool:
    return number(row, "alpha_accepted_per_drafted") > number(row, "c")


def _names(rows: list[SpeculativeRow], shown: int = 3) -> str:
    names = [
        f"{speedup_text(row)} with alpha {number(row, 'alpha_accepted_per_drafted'):.2f}, c {number(row, 'c'):.2f}"
        for row in rows
    ]
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return "; ".join(names[:shown]) + more


def _same_run(row: SpeculativeRow, chosen: SpeculativeRow) -> bool:
    return all(row[key] == chosen[key] for key in ("drafter", "setting", "k", "calibrated", "temperature"))


def curve_text(facts: Facts, drafter: str) -> str | None:
    """Return a drafter's conditional acceptance by position, greedy if it was run so; None if it was not run."""
    chosen = best([row for row in facts.overall if row["drafter"] == drafter])
    if chosen is None:
        return None
    rows = sorted(position_rows(facts, chosen), key=lambda item: item[0])
    values = ", ".join(f"{value:.2f}" for _, value in rows)
    return f"{drafter} {values}" if values else None


def position_rows(facts: Facts, chosen: SpeculativeRow) -> list[tuple[int, float]]:
    """Return (position, conditional acceptance) of the run that a row sums up."""
    return [
        (row["position"], row["value"])
        for row in facts.acceptance
        if row["definition"] == "conditional"
        and row["category"] == "all"
        and row["position"] is not None
        and all(row[key] == chosen[key] for key in ("drafter", "setting", "k", "temperature"))
    ]


DECISIONS = {
    "SD1": sd1,
    "SD5": sd5,
    "SD6": sd6,
    "SD7": sd7,
    "SD9": sd9,
}
