"""Decision rule for SD2 to SD4: the published table of speedups against the post's own law."""

from __future__ import annotations

import json

from breakeven.costs.predictors import cost_aware_speedup, leviathan_tau, post_speedup
from breakeven.evidence.claims.facts import NOT_MEASURED, PREDICTORS, SPECULATIVE, Claim, Facts, Finding, speedup_text

TABLE_TOLERANCE = 0.05  # absolute; the published speedups have two decimals and rounded inputs
POST_MODEL = "gpt2"  # name of the published target in conf/model/


def published_table(claim: Claim, facts: Facts) -> Finding:
    """SD2 to SD4: does the post's law give the post's table?

    Arithmetic: contradicted if the law at the published c and alpha misses a published speedup by more than 0.05,
    else reproduced. Beside it stands what an early exit at the same relative depth does here.
    """
    numbers = claim.numbers
    law = {k: post_speedup(numbers["alpha"], k, numbers["c"]) for k in numbers["speedup"]}
    paid = {k: (1 + k * numbers["alpha"]) / speedup for k, speedup in numbers["speedup"].items()}
    off = any(abs(law[k] - speedup) > TABLE_TOLERANCE for k, speedup in numbers["speedup"].items())
    text = " and ".join(f"{law[k]:.2f} at k={k} (published {s:.2f})" for k, s in numbers["speedup"].items())
    cost = " and ".join(f"{steps:.2f} at k={k}" for k, steps in paid.items())
    reason = f"arithmetic: at its own c and alpha the law gives {text}"
    if off:
        reason += (
            f"; the table implies rounds of {cost} target steps, so most of the cost is neither draft nor one step"
        )
    own = _same_model(claim, facts)
    analogue = _same_depth(numbers["relative_depth"], facts) if "relative_depth" in numbers else None
    artefact = SPECULATIVE if own else "data/calibration.json" if analogue else PREDICTORS
    measured = own or analogue or f"{NOT_MEASURED} (needs the GPT-2 weights of the hub)"
    return Finding("contradicted" if off else "reproduced", measured, reason, artefact)


def _same_model(claim: Claim, facts: Facts) -> str | None:
    """Name the speedups of the published drafter if the run used the published model, at the published depth."""
    if facts.target["name"] != POST_MODEL:
        return None
    depth = claim.numbers.get("relative_depth")
    layer = None if depth is None else round(depth * int(facts.target["n_layers"]))
    rows = [
        row
        for row in facts.overall
        if row["drafter"] == claim.numbers["drafter"]
        and row["k"] in claim.numbers["speedup"]
        and (layer is None or json.loads(row["setting"]).get("layer") == layer)
    ]
    return "; ".join(speedup_text(row) for row in rows) or None


def _same_depth(relative_depth: float, facts: Facts) -> str | None:
    """Say what leaving this model at the same relative depth would do, from calibration and costs."""
    known = facts.calibration.get("drafters", {}).get("early_exit", [])
    records = [record for record in known if record["conditional_alpha"] and record["conditional_alpha"][0] is not None]
    layers = int(facts.target["n_layers"])
    if not records:
        return None
    record = min(records, key=lambda r: (abs(r["setting"]["layer"] / layers - relative_depth), r["setting"]["layer"]))
    layer, alphas = int(record["setting"]["layer"]), record["conditional_alpha"]
    text = (
        f"{facts.target['name']} leaving after layer {layer} of {layers}: alpha {alphas[0]:.1%} at the first position"
    )
    c = facts.costs.draft("early_exit", f'{{"layer":{layer}}}', 1, 0.0)
    verify = facts.costs.verify("", "", [2, 4], [0.0, 0.0])
    if c is None or verify is None:
        return text
    predicted = [
        cost_aware_speedup(leviathan_tau(min(alphas[0], 1.0), k), k, c.value, float(v), 0.0)
        for k, v in zip((1, 3), verify, strict=True)
    ]
    first, second = predicted
    return f"{text}, c {c.value:.2f}, so {first:.2f} at k=1 and {second:.2f} at k=3 (cost-aware, v charged whole)"


DECISIONS = {"SD2": published_table, "SD3": published_table, "SD4": published_table}
