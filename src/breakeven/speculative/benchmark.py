"""The speculative benchmark: plain and speculative decoding of the same prompts, interleaved in one process."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
from tqdm import tqdm

from breakeven.config import Config, SpeculateConfig
from breakeven.costs.rows import process_peak_bytes
from breakeven.drafters.base import Drafter
from breakeven.models.adapter import LayeredModel
from breakeven.speculative.loop import Generation, Request, generate

PLAIN = "plain"
_NGRAM = 8


@dataclass(frozen=True)
class Variant:
    """One way to decode a prompt. `drafter` is "plain" for the baseline, whose k is 0."""

    drafter: str
    setting: str
    k: int
    calibrated: bool
    temperature: float


@dataclass(frozen=True)
class Task:
    """One prompt with its tokens."""

    prompt_id: str
    category: str
    tokens: list[int]


def variants(speculate: SpeculateConfig, plan: Mapping[str, Any], *, in_sweep: bool) -> list[Variant]:
    """Return how to decode one prompt.

    Every prompt gets the plain baseline and, at the first temperature, every drafter at its planned k. Prompts of
    the sweep get all of `speculate.k` too, and the further temperatures. Without `include_calibrated` every prompt is
    in the sweep, and further temperatures use the planned k only if it is in `speculate.k`, else the first of those.
    """
    first, *others = speculate.temperatures
    found = [Variant(PLAIN, "", 0, False, first)]
    for name, planned in sorted(plan["drafters"].items()):
        ks = {planned["k"]} if speculate.include_calibrated else set()
        if in_sweep or not speculate.include_calibrated:
            ks |= set(speculate.k)
        found += [Variant(name, planned["setting_id"], k, k == planned["k"], first) for k in sorted(ks)]
    for temperature in others if in_sweep or not speculate.include_calibrated else []:
        found.append(Variant(PLAIN, "", 0, False, temperature))
        for name, planned in sorted(plan["drafters"].items()):
            keep = speculate.include_calibrated or planned["k"] in speculate.k
            k = planned["k"] if keep else speculate.k[0]
            found.append(Variant(name, planned["setting_id"], k, k == planned["k"], temperature))
    return found


class Benchmark:
    """Runs the variants of every prompt and collects one row a request and one row a round."""

    def __init__(self, config: Config, machine: str, target: LayeredModel, drafters: Mapping[str, Drafter]) -> None:
        self.config, self.machine, self.target, self.drafters = config, machine, target, drafters
        self.requests: list[dict[str, Any]] = []
        self.rounds: list[dict[str, Any]] = []

    def run(self, tasks: Sequence[Task], plan: Mapping[str, Any]) -> tuple[pd.DataFrame, pd.DataFrame]:
        """Decode everything; return (requests, rounds)."""
        speculate = self.config.speculate
        longest = max(len(task.tokens) for task in tasks)
        self._cache = self.target.new_cache(longest + speculate.max_new_tokens)
        jobs = list(self._jobs(tasks, plan))
        # Untimed: the first calls of every variant load code and grow allocator pools.
        for variant in {variant: None for _, _, _, variant in jobs}:
            self._generate(tasks[0], variant)
        for order, (task, repeat, place, variant) in enumerate(tqdm(jobs, desc="speculate", unit="request")):
            self._record(task, variant, repeat, place, order, self._generate(task, variant))
        return pd.DataFrame(self.requests), pd.DataFrame(self.rounds)

    def _jobs(self, tasks: Sequence[Task], plan: Mapping[str, Any]) -> Iterator[tuple[Task, int, int, Variant]]:
        """Yield (task, repeat, place, variant): variants of a prompt side by side, their order drawn, then mirrored."""
        seen: dict[str, int] = {}
        for task in tasks:
            rank = seen[task.category] = seen.get(task.category, 0) + 1
            order = variants(
                self.config.speculate, plan, in_sweep=rank <= self.config.speculate.sweep_prompts_per_category
            )
            random.Random(f"{self.config.measure.seed}:{task.prompt_id}").shuffle(order)  # noqa: S311 - an order
            for repeat in range(self.config.speculate.repeats):
                # A, B, C then C, B, A: drift within a prompt hits every variant alike.
                mirrored = order if repeat % 2 == 0 else order[::-1]
                for place, variant in enumerate(mirrored):
                    yield task, repeat, place, variant

    def _generate(self, task: Task, variant: Variant) -> Generation:
        request = Request(
            task.tokens,
            task.prompt_id,
            variant.k,
            variant.temperature,
            self.config.speculate.max_new_tokens,
            self.target.eos_ids,
            self.config.measure.seed,
        )
        return generate(self.target, self.drafters.get(variant.drafter), request, self._cache)

    def _record(self, task: Task, variant: Variant, repeat: int, place: int, order: int, out: Generation) -> None:
        drafter = self.drafters.get(variant.drafter)
        per_token = self.target.kv_bytes_per_token
        common = {
            "model": self.target.name,
            "machine": self.machine,
            "workload": self.config.workload.name,
            "prompt_id": task.prompt_id,
            "category": task.category,
            "drafter": variant.drafter,
            "setting": variant.setting,
            "k": variant.k,
            "calibrated": variant.calibrated,
            "temperature": variant.temperature,
            "repeat": repeat,
        }
        per_token_draft = drafter.kv_bytes_per_token if drafter is not None else 0
        self.requests.append(
            {
                **common,
                "order": order,
                "place": place,
                "prompt_tokens": len(task.tokens),
                "new_tokens": len(out.tokens),
                "end_reason": out.end_reason,
                "prefill_s": out.prefill_s,
                "draft_prefill_s": out.draft_prefill_s,
                "decode_s": out.decode_s,
                "target_passes": len(out.rounds),
                "output_sha256": hashlib.sha256(str(out.tokens).encode()).hexdigest(),
                "output_ids": out.tokens,
                "margins": out.margins,
                "repetition_8gram": repetition(out.tokens),
                "kv_bytes_target": per_token * (len(task.tokens) + len(out.tokens) - 1),
                "kv_bytes_draft": per_token_draft * (len(task.tokens) + len(out.tokens) - 1),
                "drafter_bytes": drafter.nbytes if drafter is not None else 0,
                "peak_memory_bytes": process_peak_bytes(self.target.device),
                "lossless": drafter.lossless if drafter is not None else True,
            }
        )
        for number, one in enumerate(out.rounds):
            self.rounds.append(
                {
                    **common,
                    "seed": self.config.measure.seed,
                    "top_p": 1.0,
                    "round": number,
                    "ctx_len": one.ctx_len,
                    "k_planned": one.k_planned,
                    "n_drafted": one.n_drafted,
                    "n_accepted": one.n_accepted,
                    "n_emitted": one.n_emitted,
                    "end_reason": one.end_reason,
                    "t_draft_s": one.draft_s,
                    "t_verify_s": one.verify_s,
                    "t_other_s": one.other_s,
                    "t_record_s": one.record_s,
                    "sum_min": one.sum_min,
                    "p_draft": one.p_draft,
                    "q_draft": one.q_draft,
                    "top2_margin": one.top2_margin,
                    "kv_bytes_target": per_token * (one.ctx_len + one.n_drafted),
                    "kv_bytes_draft": per_token_draft * (one.ctx_len + one.n_drafted),
                }
            )


def repetition(tokens: Sequence[int], n: int = _NGRAM) -> float:
    """Return the share of n-grams that occurred before: greedy loops of small models flatter n-gram drafters."""
    grams = [tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1)]
    return 1.0 - len(set(grams)) / len(grams) if grams else 0.0
