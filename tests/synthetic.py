"""Fabricated results of every measuring stage, with a known truth: what summary, report and tracking are tested on.

`fabricate(Truth(...))` draws tables as the stages would write them; `write(tables, folder)` puts them where `dvc.yaml`
says. Rounds are drawn one by one from the truth, so every estimator has something to be wrong about.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from tests.synthetic_kv import kv_channels, kv_error_rows

from breakeven import io
from breakeven.config import Config, HardwareConfig, MeasureConfig, ModelConfig
from breakeven.evidence.summary import Measured

EOS = 2
CATEGORIES = ("multi_turn", "translation", "summarization", "qa", "math", "rag", "code")
MACHINE = "abcdef012345"


@dataclass(frozen=True)
class DrafterTruth:
    """How one drafter really behaves: acceptance of a tested token, costs in target steps."""

    setting: Mapping[str, Any]
    alpha: float
    c: float
    draft_rate: float = 1.0
    samples: bool = False  # draws from a q that is not one-hot
    v_shift: float = 0.0  # subtracted from v(m) by this drafter's verification
    alpha_by_category: Mapping[str, float] = field(default_factory=dict)
    calibrated_k: int = 4


@dataclass(frozen=True)
class Truth:
    """What the fabricated machine and models are like."""

    drafters: Mapping[str, DrafterTruth] = field(
        default_factory=lambda: {
            "ngram": DrafterTruth({"match": "most_recent", "max_ngram": 3, "min_ngram": 1}, 0.6, 0.004, draft_rate=0.5),
            "early_exit": DrafterTruth({"layer": 24}, 0.35, 0.7, samples=True, v_shift=0.1),
        }
    )
    model: str = "smollm2_135m"
    hardware: str = "cpu_bf16"
    categories: tuple[str, ...] = CATEGORIES
    prompts_per_category: int = 4
    sweep_prompts_per_category: int = 2
    ks: tuple[int, ...] = (1, 2, 4, 8)
    temperatures: tuple[float, ...] = (0.0, 1.0)
    repeats: int = 1
    calibrated: bool = True
    max_new_tokens: int = 48
    eos_rate: float = 0.3  # share of outputs that end before the limit
    step_s: float = 0.025
    v_slope: float = 0.02
    max_m: int = 16
    overhead: float = 0.03  # of a round, in target passes
    overhead_plain: float = 0.01  # of a plain step
    noise: float = 0.01  # log-normal spread of every time
    alpha_spread: float = 0.0  # half-width of the uniform spread of alpha over prompts
    near_ties: int = 0
    unexplained: int = 0

    def v(self, m: float, drafter: str | None = None) -> float:
        """Cost of a target pass over m tokens, in passes over one token."""
        shift = self.drafters[drafter].v_shift if drafter and m > 1 else 0.0
        return 1.0 + self.v_slope * (m - 1) - shift

    def alpha(self, drafter: str, category: str) -> float:
        """Mean acceptance of a tested token."""
        truth = self.drafters[drafter]
        return truth.alpha_by_category.get(category, truth.alpha)

    def speedup(self, drafter: str, k: int) -> float:
        """Speedup far from the ends of the output, at the drafter's mean alpha."""
        truth = self.drafters[drafter]
        tau = 1.0 + truth.draft_rate * sum(truth.alpha**i for i in range(1, k + 1))
        drafting = k * truth.c + self.v(k + 1, drafter)
        cost = truth.draft_rate * drafting + (1 - truth.draft_rate) * self.v(1) + self.overhead
        return tau * (1 + self.overhead_plain) / cost


@dataclass
class Tables:
    """What the measuring stages leave behind."""

    requests: pd.DataFrame
    rounds: pd.DataFrame
    divergences: pd.DataFrame
    costs: pd.DataFrame
    cost_rows: list[dict[str, Any]]
    plan: dict[str, Any]
    calibration: dict[str, Any]
    kv_error_rows: list[dict[str, Any]]
    kv_channels: pd.DataFrame
    hardware: dict[str, Any]
    lock: dict[str, Any]


def setting_id(setting: Mapping[str, Any]) -> str:
    """The canonical text of a setting."""
    return json.dumps(dict(setting), sort_keys=True, separators=(",", ":"))


def fabricate(truth: Truth | None = None, seed: int = 0) -> Tables:
    """Draw all tables."""
    truth = truth or Truth()
    generator = np.random.default_rng(seed)
    requests, rounds = _decode(truth, generator)
    return Tables(
        requests=requests,
        rounds=rounds,
        divergences=_divergences(truth, requests),
        costs=_costs(truth, generator),
        cost_rows=cost_rows(truth),
        plan=_plan(truth),
        calibration=_calibration(truth),
        kv_error_rows=kv_error_rows(truth.model),
        kv_channels=kv_channels(generator),
        hardware=_hardware(truth),
        lock=_lock(truth),
    )


def configuration(truth: Truth | None = None, *, resamples: int = 300, seed: int = 1234) -> Config:
    """The parts of a configuration that pure stages read."""
    truth = truth or Truth()
    config = Config(experiment="synthetic")
    config.hardware = HardwareConfig(truth.hardware, "cpu", "", "bfloat16", 2, 8.0, 2048)
    config.model = ModelConfig(name=truth.model)
    config.measure = MeasureConfig(seed=seed, trial=0, bootstrap_resamples=resamples, confidence=0.95)
    return config


def measured(tables: Tables) -> Measured:
    """The same tables as the summary takes them."""
    return Measured(
        tables.requests, tables.rounds, tables.divergences, tables.cost_rows, tables.plan, tables.calibration,
        tables.kv_error_rows, tables.kv_channels, tables.hardware, tables.lock,
    )  # fmt: skip


def write(tables: Tables, folder: Path) -> None:
    """Write every table to its place under `folder`."""
    for name in ("requests", "rounds", "divergences", "costs", "kv_channels"):
        io.write_parquet(folder / "data" / f"{name}.parquet", getattr(tables, name))
    io.write_parquet(folder / "data" / "kv_error.parquet", pd.DataFrame(tables.kv_error_rows))
    io.write_json(folder / "data" / "plan.json", tables.plan)
    io.write_json(folder / "data" / "calibration.json", tables.calibration)
    io.write_json(folder / "reports" / "metrics" / "costs.json", tables.cost_rows)
    io.write_json(folder / "reports" / "metrics" / "kv_error.json", tables.kv_error_rows)
    io.write_json(folder / "build" / "hardware.json", tables.hardware)
    io.write_json(folder / "build" / "models.lock.json", tables.lock)


def _prompts(truth: Truth) -> list[tuple[str, str, int]]:
    """(id, category, index within the category) of every measured prompt."""
    return [(f"{c}-{i:02d}", c, i) for c in truth.categories for i in range(truth.prompts_per_category)]


def _runs(truth: Truth, index: int, first_temperature: bool) -> list[tuple[str, int, bool]]:
    """(drafter, k, calibrated) of one prompt: the sweep on a few prompts, the calibrated k on all."""
    runs = []
    for name, drafter in truth.drafters.items():
        in_sweep = index < truth.sweep_prompts_per_category
        ks = set(truth.ks) if in_sweep else set()
        if truth.calibrated and (first_temperature or in_sweep):
            ks.add(drafter.calibrated_k)
        runs += [(name, k, truth.calibrated and k == drafter.calibrated_k) for k in sorted(ks)]
    return runs


def _decode(truth: Truth, generator: np.random.Generator) -> tuple[pd.DataFrame, pd.DataFrame]:
    requests: list[dict[str, Any]] = []
    rounds: list[dict[str, Any]] = []
    for t, temperature in enumerate(truth.temperatures):
        for prompt_id, category, index in _prompts(truth):
            shift = generator.uniform(-truth.alpha_spread, truth.alpha_spread) if truth.alpha_spread else 0.0
            for repeat in range(truth.repeats):
                runs = [("plain", 0, False), *_runs(truth, index, t == 0)]
                order = generator.permutation(len(runs))
                greedy = _output(truth, generator)
                for (name, k, calibrated), place in zip(runs, order, strict=True):
                    output = greedy if temperature == 0 else _output(truth, generator)
                    base = _base(truth, prompt_id, category, name, k, calibrated, temperature, repeat)
                    alpha = 0.0 if name == "plain" else truth.alpha(name, category) + shift
                    own = _rounds(truth, generator, base, output, float(np.clip(alpha, 0.0, 1.0)))
                    rounds += own
                    requests.append(_request(truth, base, own, output, int(place), len(requests)))
    round_table = pd.DataFrame(rounds)
    return pd.DataFrame(requests), round_table


def _output(truth: Truth, generator: np.random.Generator) -> list[int]:
    """New tokens of one request; EOS only at the end."""
    ends = generator.random() < truth.eos_rate
    n = int(generator.integers(truth.max_new_tokens // 2, truth.max_new_tokens)) if ends else truth.max_new_tokens
    tokens = generator.integers(10, 5000, size=n).tolist()
    return [*tokens[:-1], EOS] if ends else tokens


def _base(
    truth: Truth, prompt_id: str, category: str, name: str, k: int, calibrated: bool, temperature: float, repeat: int
) -> dict[str, Any]:
    setting = "" if name == "plain" else setting_id(truth.drafters[name].setting)
    return {
        "model": truth.model, "machine": MACHINE, "workload": "builtin", "prompt_id": prompt_id, "category": category,
        "drafter": name, "setting": setting, "k": k, "calibrated": calibrated, "temperature": temperature,
        "repeat": repeat,
    }  # fmt: skip


def _rounds(
    truth: Truth, generator: np.random.Generator, base: dict[str, Any], output: list[int], alpha: float
) -> list[dict[str, Any]]:
    """Walk through one output round by round; the first token came out of the prefill."""
    prompt_tokens, rows, done = 40 + len(base["prompt_id"]), [], 1
    while done < len(output):
        k = min(base["k"], truth.max_new_tokens - done - 1)
        drafts = base["drafter"] != "plain" and generator.random() < truth.drafters[base["drafter"]].draft_rate
        n_planned = k if drafts else 0
        p, q, mass, accepted = _draft(truth, generator, base, n_planned, alpha)
        left = len(output) - done
        at_eos = output[-1] == EOS and accepted >= left
        if at_eos:
            accepted = drafted = left
            reason, emitted = "eos", left
        else:
            drafted, emitted = n_planned, accepted + 1
            reason = "no_draft" if n_planned == 0 else "full" if accepted == drafted else "reject"
        tested = accepted + (reason == "reject")
        rows.append({
            **base, "seed": 1234, "top_p": 1.0, "round": len(rows), "ctx_len": prompt_tokens + done, "k_planned": k,
            "n_drafted": drafted, "n_accepted": accepted, "n_emitted": emitted, "end_reason": reason,
            **_times(truth, generator, base["drafter"], n_planned),
            "sum_min": mass[:tested], "p_draft": p[:tested], "q_draft": q[:tested], "top2_margin": 1.0,
            "kv_bytes_target": 46080 * 512, "kv_bytes_draft": 0,
        })  # fmt: skip
        done += emitted
    return rows


def _draft(
    truth: Truth, generator: np.random.Generator, base: dict[str, Any], n: int, alpha: float
) -> tuple[list[float], list[float], list[float], int]:
    """Draw n drafts over two outcomes: p and q of each drafted token, sum min(p, q), and how many are accepted."""
    if base["temperature"] == 0:
        p = (generator.random(n) < alpha).astype(float)
        q = np.ones(n)
        mass, ratio = p, p
    elif n == 0 or not truth.drafters[base["drafter"]].samples:
        p = np.full(n, alpha)
        q = np.ones(n)
        mass, ratio = p, p
    else:
        # q = (a, 1 - a), p = (a - gap, 1 - a + gap): sum min(p, q) = 1 - gap = alpha.
        gap = 1.0 - alpha
        a = generator.uniform(gap, 1.0, size=n)
        first = generator.random(n) < a
        q = np.where(first, a, 1.0 - a)
        p = np.where(first, a - gap, 1.0 - a + gap)
        mass, ratio = np.full(n, alpha), p / q
    passed = generator.random(n) < ratio
    accepted = int(np.argmin(passed)) if not passed.all() else n
    return p.tolist(), q.tolist(), mass.tolist(), accepted


def _times(truth: Truth, generator: np.random.Generator, name: str, n: int) -> dict[str, float]:
    noise = np.exp(generator.normal(0.0, truth.noise, size=3)) * truth.step_s
    if name == "plain":
        other = float(noise[2] * truth.overhead_plain)
        return {"t_draft_s": 0.0, "t_verify_s": float(noise[1]), "t_other_s": other, "t_record_s": 1e-4}
    return {
        "t_draft_s": float(noise[0] * n * truth.drafters[name].c),
        "t_verify_s": float(noise[1] * truth.v(n + 1, name)),
        "t_other_s": float(noise[2] * truth.overhead),
        "t_record_s": 1e-4,
    }


def _request(
    truth: Truth, base: dict[str, Any], rounds: list[dict[str, Any]], output: list[int], place: int, order: int
) -> dict[str, Any]:
    decode = sum(row["t_draft_s"] + row["t_verify_s"] + row["t_other_s"] for row in rounds)
    prompt_tokens = 40 + len(base["prompt_id"])
    return {
        **base, "order": order, "place": place, "prompt_tokens": prompt_tokens, "new_tokens": len(output),
        "end_reason": "eos" if output[-1] == EOS else "max_len", "prefill_s": prompt_tokens * 0.002,
        "draft_prefill_s": 0.0 if base["drafter"] == "plain" else 0.001, "decode_s": decode,
        "target_passes": len(rounds), "output_sha256": hashlib.sha256(json.dumps(output).encode()).hexdigest(),
        "output_ids": output, "repetition_8gram": 0.05, "kv_bytes_target": 46080 * 512,
        "kv_bytes_draft": 0, "drafter_bytes": 0, "peak_memory_bytes": 900_000_000,
        "margins": [1.0] * len(output), "lossless": True,
    }  # fmt: skip


def _divergences(truth: Truth, requests: pd.DataFrame) -> pd.DataFrame:
    """Change the end of some greedy speculative outputs and say so in the divergence table."""
    rows = []
    greedy = requests.index[(requests["temperature"] == 0) & (requests["drafter"] != "plain")]
    for i, index in enumerate(greedy[: truth.near_ties + truth.unexplained]):
        output = list(requests.at[index, "output_ids"])
        position = len(output) // 2
        spec_token = output[position] + 1
        rows.append({
            **{key: requests.at[index, key] for key in ("drafter", "setting", "k", "repeat", "prompt_id")},
            "position": position, "plain_token": output[position], "spec_token": spec_token,
            "margin_plain": 0.01, "margin_spec": 0.02, "epsilon": 0.05,
            "verdict": "near_tie" if i < truth.near_ties else "unexplained",
        })  # fmt: skip
        output[position] = spec_token
        requests.at[index, "output_ids"] = output
        requests.at[index, "output_sha256"] = hashlib.sha256(json.dumps(output).encode()).hexdigest()
    columns = ["drafter", "setting", "k", "repeat", "prompt_id", "position", "plain_token", "spec_token",
               "margin_plain", "margin_spec", "epsilon", "verdict"]  # fmt: skip
    return pd.DataFrame(rows, columns=columns)


def _costs(truth: Truth, generator: np.random.Generator) -> pd.DataFrame:
    rows = []
    for context in (64, 512):
        for m in range(1, truth.max_m + 1):
            for repeat in range(5):
                seconds = truth.step_s * truth.v(m) * float(np.exp(generator.normal(0, truth.noise)))
                rows.append({"kind": "target", "drafter": "", "setting": "", "layer": 0, "m": m,
                             "context_tokens": context, "repeat": repeat, "seconds": seconds})  # fmt: skip
    return pd.DataFrame(rows)


def cost_row(truth: Truth, quantity: str, value: float, **fields: Any) -> dict[str, Any]:
    """One row of costs.json."""
    row = {
        "schema_version": 1, "model": truth.model, "machine": MACHINE, "quantity": quantity, "drafter": None,
        "setting": None, "layer": None, "m": None, "context_tokens": None, "part": None, "value": value,
        "value_low": value * 0.99, "value_high": value * 1.01, "n": 15,
    }  # fmt: skip
    return {**row, **fields}


def cost_rows(truth: Truth) -> list[dict[str, Any]]:
    """reports/metrics/costs.json."""
    rows = [
        cost_row(truth, "memory_bytes", 269e6, part="weights"),
        cost_row(truth, "memory_bytes", 23040, part="kv_per_token"),
        cost_row(truth, "memory_bytes", 900e6, part="process_peak"),
    ]
    for context in (64, 512):
        rows.append(cost_row(truth, "target_step_s", truth.step_s, context_tokens=context))
        for m in range(1, truth.max_m + 1):
            rows.append(cost_row(truth, "v", truth.v(m), m=m, context_tokens=context))
            rows.append(cost_row(truth, "overhead_s", truth.overhead * truth.step_s, m=m, context_tokens=context))
            rows.append(cost_row(truth, "overhead_ratio", truth.overhead, m=m, context_tokens=context))
        for name, drafter in truth.drafters.items():
            rows += _drafter_cost_rows(truth, name, drafter, context)
    for name in truth.drafters:
        rows.append(cost_row(truth, "memory_bytes", 0.0, part="drafter", drafter=name))
    return rows


def _drafter_cost_rows(truth: Truth, name: str, drafter: DrafterTruth, context: int) -> list[dict[str, Any]]:
    """As the costs stage times them: proposing and verifying at three k, and every exit layer alone."""
    rows, own = [], {"drafter": name, "setting": setting_id(drafter.setting), "context_tokens": context}
    for k in sorted({1, drafter.calibrated_k, truth.max_m - 1}):
        rows.append(cost_row(truth, "c", drafter.c, m=k, **own))
        rows.append(cost_row(truth, "v", truth.v(k + 1, name), m=k + 1, **own))
    if name == "early_exit":
        rows += [
            cost_row(truth, "c", drafter.c * layer / drafter.setting["layer"], drafter=name, layer=layer, m=1,
                     context_tokens=context)
            for layer in range(1, 30)
        ]  # fmt: skip
    return rows


def _plan(truth: Truth) -> dict[str, Any]:
    drafters = {}
    for name, drafter in truth.drafters.items():
        speedup = truth.speedup(name, drafter.calibrated_k)
        drafters[name] = {
            "setting": dict(drafter.setting), "setting_id": setting_id(drafter.setting), "k": drafter.calibrated_k,
            "predicted_speedup": speedup, "pays": speedup > 1.0,
            "alternatives": [
                {"setting": dict(drafter.setting), "k": k, "predicted_speedup": truth.speedup(name, k)}
                for k in truth.ks
            ],
        }  # fmt: skip
    return {"drafters": drafters}


def _calibration(truth: Truth) -> dict[str, Any]:
    drafters: dict[str, Any] = {}
    for name, drafter in truth.drafters.items():
        settings = [dict(drafter.setting)]
        if name == "early_exit":
            settings = [{"layer": layer} for layer in range(1, 30)]
        drafters[name] = [
            {
                "setting": setting,
                "conditional_alpha": [_layer_alpha(drafter, setting)] * 8,
                "n_reached": [400] * 8,
                "draft_rate": drafter.draft_rate,
                "n_positions": 400,
                "n_prompts": 14,
                "tau_by_k": {str(k): 1.0 + drafter.draft_rate * drafter.alpha for k in truth.ks},
            }
            for setting in settings
        ]
    return {"drafters": drafters, "model": truth.model}


def _layer_alpha(drafter: DrafterTruth, setting: Mapping[str, Any]) -> float:
    """Acceptance rises with the exit layer and hits the truth at the calibrated one."""
    if "layer" not in setting:
        return drafter.alpha
    return min(0.95, drafter.alpha * setting["layer"] / drafter.setting["layer"])


def _hardware(truth: Truth) -> dict[str, Any]:
    return {
        "machine": MACHINE, "target": truth.hardware, "device": "cpu", "cpu_model": "Fabricated CPU",
        "physical_cores": 2, "threads": 2, "ram_gib": 8.0, "torch": "2.13.0", "python": "3.11", "os": "Linux",
        "device_names": [],
    }  # fmt: skip


def _lock(truth: Truth) -> dict[str, Any]:
    target = {
        "name": truth.model, "license": "Apache-2.0", "source": {"kind": "wheel"}, "folder": f"{truth.model}-0123",
        "files": {"model.safetensors": {"sha256": "0" * 64, "bytes": 269_000_000}}, "n_parameters": 134_515_008,
        "n_layers": 30, "n_kv_heads": 3, "n_query_heads": 9, "head_dim": 64, "hidden": 576, "vocab": 49152,
        "dtype_stored": "float32", "dequantized_from": "Q4_1", "tokenizer_digest": "0" * 64,
        "chat_template_sha256": "0" * 64,
    }  # fmt: skip
    return {"schema_version": 1, "models": {"target": target}, "workload": None}
