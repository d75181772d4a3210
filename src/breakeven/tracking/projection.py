"""Result files into MLflow runs: pure functions, no MLflow.

One run per (machine, model, drafter) and per (machine, model, scheme). A metric that varies with the draft length has
k on the step axis, one that varies with precision has nominal bits there, so that MLflow's line charts compare runs;
its table shows the last step only, hence the `best_*` and `*_at_Nbit` scalars under names of their own.

Keys: plain ones are all categories at the first temperature; `alpha.T1` another temperature; `alpha.qa` a category;
`attention_error.k_channel.v_token` a pair of axes; `v.ctx64` a context length. `*_low` and `*_high` bound the interval.
Qualifiers come last and without a slash: MLflow sorts charts by name and puts slashed names into sections of their own,
above the plain ones.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from breakeven.io import sha256_json
from breakeven.reporting.data import ALL, at_first_temperature, chosen, cost_rows, kv_overall
from breakeven.tracking.files import ResultFiles

KV = "kv"
SPECULATIVE = "speculative"
RESULT_ID_DIGITS = 16

# Sections of params.yaml that a kind of result depends on (or that say what it is about).
_SECTIONS = {
    KV: ("experiment", "model", "capture", "kv_error", "measure", "hardware.name"),
    SPECULATIVE: ("experiment", "model", "hardware", "workload", "calibrate", "costs", "speculate", "measure"),
}
_WITH_INTERVAL = ("alpha", "tau", "speedup", "c")
_PLAIN = (
    "speedup_total",
    "speedup_end_to_end",
    "tokens_per_s",
    "tokens_per_s_plain",
    "v_verify",
    "overhead",
    "predicted_post",
    "predicted_leviathan",
    "predicted_cost_aware",
    "residual_cost_aware",
    "accepted_per_round",
    "alpha_accepted_per_drafted",
    "alpha_sum_min",
    "draft_rate",
    "peak_memory_bytes",
    "kv_bytes_per_token",
    "drafter_bytes",
    "n_prompts",
    "n_rounds",
    "n_tokens",
    "n_divergences",
    "n_divergences_near_tie",
)
_BEST = (*_WITH_INTERVAL, "tokens_per_s", "peak_memory_bytes", "kv_bytes_per_token")
_KV_WITH_INTERVAL = (
    "attention_error",
    "score_error_centred",
    "output_error_k_only",
    "output_error_v_only",
    "output_error_both",
)
_KV_PLAIN = ("bits_real", "k_bits_real", "v_bits_real", "levels", "n_texts")


@dataclass(frozen=True)
class Point:
    """One metric value; `step` is k, bits, m, a draft position, or 0 for scalars."""

    key: str
    value: float
    step: int = 0


@dataclass(frozen=True)
class RunRecord:
    """One MLflow run before it is logged."""

    kind: str  # kv | speculative: the experiment, below its prefix
    subject: str  # the scheme or the drafter
    name: str
    params: dict[str, str]
    points: list[Point]
    tags: dict[str, str]
    result_id: str  # digest of inputs and measurement: the same result is never logged twice


def records(files: ResultFiles) -> list[RunRecord]:
    """Return every run that the result files hold, in a fixed order."""
    schemes = sorted({row["scheme"] for row in files.kv_error})
    drafters = sorted({row["drafter"] for row in files.speculative})
    return [_kv(files, scheme) for scheme in schemes] + [_speculative(files, drafter) for drafter in drafters]


def _kv(files: ResultFiles, scheme: str) -> RunRecord:
    rows = [row for row in files.kv_error if row["scheme"] == scheme]
    whole: list[Mapping[str, Any]] = [dict(row) for row in kv_overall(rows)]
    elements = _cache_elements(files.lock)
    for row in whole:
        if elements:
            row["kv_bytes_per_token"] = elements * (row["k_bits_real"] + row["v_bits_real"]) / 8  # type: ignore[index]
    pairs = sorted({(row["k_axis"], row["v_axis"]) for row in whole})
    by_pair = {pair: [row for row in whole if (row["k_axis"], row["v_axis"]) == pair] for pair in pairs}
    # The scheme at its best speaks for it; which axes these are stands in the parameters.
    best = min(pairs, key=lambda pair: _mean(row["output_error_both"] for row in by_pair[pair]))
    keys = ("kv_bytes_per_token", *_KV_PLAIN)
    points: list[Point] = []
    for pair, pair_rows in by_pair.items():
        points += _points(pair_rows, "bits_nominal", _KV_WITH_INTERVAL, keys, f".k_{pair[0]}.v_{pair[1]}")
    points += _points(by_pair[best], "bits_nominal", _KV_WITH_INTERVAL, keys)
    for row in by_pair[best]:
        points += _values(row, ("attention_error", "output_error_both"), 0, infix=f"_at_{row['bits_nominal']}bit")
    extra = {"scheme": scheme, "best_k_axis": best[0], "best_v_axis": best[1]}
    return _record(files, KV, scheme, extra, points, rows, settings_of=f"kv.{scheme}")


def _cache_elements(lock: Mapping[str, Any]) -> int:
    """Elements of K (as many of V) that one token adds to the cache."""
    target = lock.get("models", {}).get("target", {})
    shape = [target.get(key) for key in ("n_layers", "n_kv_heads", "head_dim")]
    return math.prod(shape) if all(shape) else 0


def _speculative(files: ResultFiles, drafter: str) -> RunRecord:
    rows = [row for row in files.speculative if row["drafter"] == drafter]
    first: list[Mapping[str, Any]] = [dict(row) for row in at_first_temperature(rows)]
    points: list[Point] = []
    for category in sorted({row["category"] for row in first} - {ALL}):
        points += _points(_one_per_k(first, category), "k", ("alpha", "tau", "speedup"), (), f".{category}")
    for temperature in sorted({row["temperature"] for row in rows}):
        at_temperature = [dict(row) for row in rows if row["temperature"] == temperature]
        qualifier = "" if first and temperature == first[0]["temperature"] else f".T{temperature:g}"
        points += _points(_one_per_k(at_temperature, ALL), "k", _WITH_INTERVAL, _PLAIN, qualifier)
    best = next((row for row in chosen(rows) if first and row["temperature"] == first[0]["temperature"]), None)
    points += _machine_points(files, drafter)
    extra = {"drafter": drafter}
    if best is not None:
        points += _acceptance_points(files, best)
        points += [
            Point("best_k", float(best["k"])),
            *(Point(f"best_{p.key}", p.value) for p in _values(dict(best), _BEST, 0)),
        ]
        extra |= {
            "setting": best["setting"],
            "best_k": str(best["k"]),
            "best_k_from": "calibration" if best["calibrated"] else "fastest of the sweep over k",
        }
    return _record(files, SPECULATIVE, drafter, extra, points, rows, settings_of=f"drafter.{drafter}")


def _one_per_k(rows: Iterable[Mapping[str, Any]], category: str) -> list[Mapping[str, Any]]:
    """Keep one row a draft length: the calibrated run, which has all prompts, before one of the sweep."""
    best: dict[int, Mapping[str, Any]] = {}
    for row in rows:
        if row["category"] != category:
            continue
        held = best.get(row["k"])
        if held is None or (row["calibrated"], row["n_prompts"]) > (held["calibrated"], held["n_prompts"]):
            best[row["k"]] = row
    return [best[k] for k in sorted(best)]


def _machine_points(files: ResultFiles, drafter: str) -> list[Point]:
    """Costs by context length with the tokens of a pass on the step axis, and where the memory goes.

    v is the target's own pass over m tokens; v_verify and c are those of this drafter.
    """
    points: list[Point] = []
    for quantity, owner, name in (("v", None, "v"), ("v", drafter, "v_verify"), ("c", drafter, "c")):
        for row in cost_rows(files.costs, quantity):
            # Rows with a layer time one exit each: calibration's business.
            if row["drafter"] == owner and row["layer"] is None and row["m"] is not None:
                points += _renamed(row, name, row["m"], f".ctx{row['context_tokens']}")
    for row in cost_rows(files.costs, "memory_bytes", lambda row: row["drafter"] in (None, drafter)):
        points += [Point(f"memory.{row['part']}_bytes", float(row["value"]))] if _finite(row["value"]) else []
    return points


def _renamed(row: Mapping[str, Any], name: str, step: int, qualifier: str = "") -> list[Point]:
    """Return a `value` with its bounds under another name."""
    renamed = {name + bound: row[f"value{bound}"] for bound in ("", "_low", "_high")}
    return _values(renamed, (name,), step, qualifier)


def _acceptance_points(files: ResultFiles, best: Mapping[str, Any]) -> list[Point]:
    """Acceptance by draft position at the best k; the position is the step."""
    keys = ("drafter", "setting", "k", "temperature", "category")
    points: list[Point] = []
    for row in files.acceptance:
        if row["position"] is not None and all(dict(row)[key] == best[key] for key in keys):
            points += _renamed(row, f"{row['definition']}_acceptance", row["position"])
    return points


def _points(
    rows: Iterable[Mapping[str, Any]],
    step: str,
    with_interval: Sequence[str],
    plain: Sequence[str],
    qualifier: str = "",
) -> list[Point]:
    points: list[Point] = []
    for row in sorted(rows, key=lambda row: int(row[step])):
        points += _values(row, with_interval, int(row[step]), qualifier)
        points += [Point(key + qualifier, float(row[key]), int(row[step])) for key in plain if _finite(row.get(key))]
    return points


def _values(
    row: Mapping[str, Any], keys: Sequence[str], step: int, qualifier: str = "", infix: str = ""
) -> list[Point]:
    """Return each key with the bounds of its interval; null means "not measured" and is left out."""
    bounded = [(key, bound) for key in keys for bound in ("", "_low", "_high")]
    return [
        Point(f"{key}{infix}{bound}{qualifier}", float(row[key + bound]), step)
        for key, bound in bounded
        if _finite(row.get(key + bound))
    ]


def _finite(value: Any) -> bool:
    """MLflow stores infinities as 1.8e308, which ruins charts."""
    return value is not None and math.isfinite(float(value))


def _mean(values: Iterable[Any]) -> float:
    finite = [float(value) for value in values if _finite(value)]
    return sum(finite) / len(finite) if finite else math.inf


def _record(
    files: ResultFiles,
    kind: str,
    subject: str,
    extra: Mapping[str, str],
    points: list[Point],
    rows: Sequence[Mapping[str, Any]],
    settings_of: str,
) -> RunRecord:
    hardware = files.hardware
    params = {key: _text(value) for key, value in files.parameters.items() if _belongs(key, _SECTIONS[kind])}
    params |= {key: _text(value) for key, value in files.parameters.items() if _belongs(key, (settings_of,))}
    params |= {
        key: _text(hardware[key]) for key in ("machine", "target", "threads", "cpu_model", "torch") if key in hardware
    }
    params |= extra
    models = {role: model.get("files") for role, model in files.lock.get("models", {}).items()}
    passed = sum(bool(audit["passed"]) for audit in files.audits)
    tags = {
        "kind": kind,
        "subject": subject,
        "machine": str(hardware.get("machine", "")),
        "target": str(hardware.get("target", "")),
        "model": files.config.model.name,
        "experiment": files.config.experiment,
        "audits": f"{passed} of {len(files.audits)} passed",
    }
    # The fingerprint stands for the machine in kv results too: they are as exact as its arithmetic.
    content = {"kind": kind, "subject": subject, "params": params, "rows": list(rows), "models": models}
    return RunRecord(
        kind=kind,
        subject=subject,
        name=f"{subject} {files.config.model.name} {hardware.get('target', '')}".strip(),
        params=params,
        points=points,
        tags=tags,
        result_id=sha256_json(content)[:RESULT_ID_DIGITS],
    )


def _belongs(key: str, sections: Sequence[str]) -> bool:
    return any(key == section or key.startswith(f"{section}.") for section in sections)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
