"""The verdict in plain words: what pays here, what does not, and which cost decides it.

Every sentence is computed. A sentence whose condition does not hold, or whose numbers were not measured, is not said.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from breakeven.costs.predictors import break_even_c
from breakeven.io import read_json
from breakeven.reporting.data import chosen, first_temperature
from breakeven.reporting.kv_verdict import kv_lines
from breakeven.reporting.words import counted, is_number, listed, number, ratio, setting, temperature, with_interval
from breakeven.results import AuditRow, KvErrorRow, SpeculativeRow


class Outcome(StrEnum):
    """What a measured speedup and its interval allow to say."""

    PAYS = "pays"
    LOSES = "does not pay"
    OPEN = "undecided"


@dataclass(frozen=True)
class Finding:
    """One verdict: what it is about, how it came out, and why."""

    subject: str
    outcome: Outcome
    text: str


@dataclass(frozen=True)
class RoundCost:
    """What one round costs, in plain steps.

    Attributes:
        n_draft: tokens drafted, mean over rounds.
        draft: n_draft times c.
        verify: v at the mean verified length.
        overhead: everything else.
    """

    n_draft: float
    draft: float
    verify: float
    overhead: float

    @property
    def total(self) -> float:
        """The whole round."""
        return self.draft + self.verify + self.overhead

    def largest_avoidable(self) -> tuple[str, float]:
        """Return the name and size of the part that costs most above the one step that plain decoding pays too."""
        parts = {"drafting": self.draft, "verification": self.verify - 1.0, "overhead": self.overhead}
        name = max(parts, key=lambda key: parts[key])
        return name, parts[name]


def outcome(row: SpeculativeRow) -> Outcome:
    """Judge a row: its interval must lie wholly on one side of 1, else the run does not decide."""
    low, high = row["speedup_low"], row["speedup_high"]
    if not (is_number(low) and is_number(high)):
        return Outcome.OPEN
    if low > 1.0:
        return Outcome.PAYS
    return Outcome.LOSES if high < 1.0 else Outcome.OPEN


def round_cost(row: SpeculativeRow) -> RoundCost | None:
    """Return what a round costs by the cost-aware law; None if a part was not measured."""
    c, verify, overhead = row["c"], row["v_verify"], row["overhead"]
    if c is None or verify is None or overhead is None or not is_number(row["tau"]):
        return None
    drafted = n_drafted(row)
    return RoundCost(drafted, drafted * c, verify, overhead)


def n_drafted(row: SpeculativeRow) -> float:
    """Return the mean number of tokens drafted a round: (A / R) / (A / D), or k where nothing was accepted."""
    per_drafted = row["alpha_accepted_per_drafted"]
    if per_drafted is not None and per_drafted > 0.0 and is_number(row["accepted_per_round"]):
        return row["accepted_per_round"] / per_drafted
    return row["k"] * (row["draft_rate"] if is_number(row["draft_rate"]) else 1.0)


def speculative_findings(rows: Sequence[SpeculativeRow]) -> list[Finding]:
    """Return one finding per drafter, the fastest first; other temperatures are told in a closing sentence."""
    value = first_temperature(rows)
    own: dict[str, list[SpeculativeRow]] = {}
    # Stable sort: the temperature with most prompts speaks first.
    for row in sorted(chosen(rows), key=lambda row: row["temperature"] != value):
        own.setdefault(row["drafter"], []).append(row)
    findings = []
    for name, (first, *others) in sorted(own.items(), key=lambda item: (-(item[1][0]["speedup"] or 0.0), item[0])):
        text = " ".join(part for part in (_what(first), _why(first), *map(_elsewhere, others)) if part)
        findings.append(Finding(name, outcome(first), text))
    return findings


def _elsewhere(row: SpeculativeRow) -> str:
    """Tell how the drafter fares at another temperature."""
    measured = with_interval(row["speedup"], row["speedup_low"], row["speedup_high"], unit="×")
    return f"At {temperature(row['temperature'])} with k = {row['k']} it {_VERBS[outcome(row)]}: {measured}."


_VERBS = {Outcome.PAYS: "pays", Outcome.LOSES: "does not pay", Outcome.OPEN: "is undecided"}


def _what(row: SpeculativeRow) -> str:
    how = "" if row["calibrated"] else " (the fastest of the lengths tried, so rather too good)"
    chosen_setting = f" ({setting(row['setting'])})" if setting(row["setting"]) else ""
    measured = with_interval(row["speedup"], row["speedup_low"], row["speedup_high"], unit="×")
    lossy = "" if row["lossless"] else " It is lossy: it changes the output distribution."
    return (
        f"{row['drafter']}{chosen_setting} {_VERBS[outcome(row)]} at {temperature(row['temperature'])} with k = "
        f"{row['k']}{how}: {measured} the speed of plain decoding over {counted(row['n_prompts'], 'prompt')}.{lossy}"
    )


def _why(row: SpeculativeRow) -> str:
    """Explain a speedup by the balance of a round: tokens emitted against steps paid."""
    cost = round_cost(row)
    if cost is None:
        return ""
    balance = (
        f"A round emits {number(row['tau'])} tokens and costs {number(cost.total)} plain steps: {number(cost.draft)} "
        f"to draft, {number(cost.verify)} to verify, {number(cost.overhead)} of overhead."
    )
    if outcome(row) is not Outcome.LOSES:
        return balance
    name, size = cost.largest_avoidable()
    blame = f"What costs it most is {name} ({number(size)} steps)." if size > 0.0 else ""
    return " ".join(part for part in (balance, blame, _remedy(row, cost)) if part)


def _remedy(row: SpeculativeRow, cost: RoundCost) -> str:
    """Say which draft cost would break even, or that none would."""
    if cost.n_draft <= 0.0:
        return "It drafted nothing."
    c = row["c"]
    affordable = break_even_c(row["tau"], cost.n_draft, cost.verify, cost.overhead)
    if affordable <= 0.0:
        return "At this acceptance not even a free draft would pay: verification and overhead alone cost more."
    if c is not None and affordable < c:
        return f"It would break even if a draft token cost {number(affordable)} of a plain step instead of {number(c)}."
    return "The cost model promises a gain that the clock does not show: see predicted against measured."


def headline(rows: Sequence[SpeculativeRow]) -> str:
    """Return the one sentence that answers whether speculation pays here."""
    value = first_temperature(rows)
    judged = [(row, outcome(row)) for row in chosen(rows) if row["temperature"] == value]
    if not judged or value is None:
        return "Speculative decoding was not measured in this run."
    names = {kind: [row["drafter"] for row, found in judged if found is kind] for kind in Outcome}
    parts = []
    if names[Outcome.PAYS]:
        best = max((row for row, found in judged if found is Outcome.PAYS), key=lambda row: row["speedup"] or 0.0)
        parts.append(
            f"Speculative decoding pays here with {listed(names[Outcome.PAYS])}: "
            f"use {best['drafter']} with k = {best['k']} ({ratio(best['speedup'])} at {temperature(value)})"
        )
    if names[Outcome.LOSES]:
        parts.append(f"leave {listed(names[Outcome.LOSES])} off: slower than plain decoding")
    if names[Outcome.OPEN]:
        verb = "is" if len(names[Outcome.OPEN]) == 1 else "are"
        parts.append(f"{listed(names[Outcome.OPEN])} {verb} undecided: the interval contains 1 or is missing")
    text = "; ".join(parts) + "."
    return text[0].upper() + text[1:] if not names[Outcome.OPEN] or len(parts) > 1 else text


def warnings(rows: Sequence[SpeculativeRow], audits: Sequence[AuditRow]) -> list[str]:
    """Return what a reader must know before trusting a number: failed audits, unexplained divergences."""
    lines = []
    failed = sorted(audit["audit"] for audit in audits if not audit["passed"])
    if failed:
        lines.append(
            f"{counted(len(failed), 'audit')} of {len(audits)} failed ({', '.join(failed)}): read the numbers with "
            "that in mind."
        )
    for row in chosen(rows):
        differing, near = row["n_divergences"], row["n_divergences_near_tie"]
        if differing and near is not None and differing > near:
            lines.append(
                f"{row['drafter']} at {temperature(row['temperature'])}: {counted(differing - near, 'output')} "
                "differ from plain decoding and no near tie explains it."
            )
    return lines


def verdict_lines(
    speculative: Sequence[SpeculativeRow],
    kv_error: Sequence[KvErrorRow] = (),
    audits: Sequence[AuditRow] = (),
) -> list[str]:
    """Return the verdict as lines of plain text: the headline, each drafter, quantization, warnings.

    Args:
        speculative: rows of speculative.json.
        kv_error: rows of kv_error.json.
        audits: rows of audits.json.
    """
    lines = [headline(speculative)]
    lines += [finding.text for finding in speculative_findings(speculative)]
    return lines + kv_lines(kv_error) + warnings(speculative, audits)


def main_lines(workspace: Path) -> list[str]:
    """Return the verdict of the results in a workspace, as `breakeven verdict` prints it.

    Raises:
        BreakevenError: a result file is missing; the message names the command that makes it.
    """
    metrics = workspace / "reports" / "metrics"
    return verdict_lines(
        read_json(metrics / "speculative.json"),
        read_json(metrics / "kv_error.json"),
        read_json(metrics / "audits.json"),
    )
