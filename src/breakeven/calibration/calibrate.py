"""Acceptance of every setting of every drafter on the calibration prompts."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

from tqdm import tqdm

from breakeven.calibration.replay import Proposal, ReplayedRound, curve, from_drafter, from_matches, replay
from breakeven.calibration.teacher_forcing import exit_matches, model_matches
from breakeven.drafters import registry
from breakeven.errors import ConfigError
from breakeven.models.adapter import LayeredModel
from breakeven.speculative.loop import Request, generate


@dataclass(frozen=True)
class Written:
    """A calibration prompt and what the target wrote to it at temperature 0."""

    prompt: list[int]
    output: list[int]


def write_outputs(
    target: LayeredModel,
    prompts: Iterable[tuple[str, list[int]]],
    max_new_tokens: int,
    eos_ids: frozenset[int],
    seed: int,
) -> list[Written]:
    """Let the target answer each (prompt id, token ids) greedily; prompts answered with one token are left out."""
    items = list(prompts)
    cache = target.new_cache(max(len(ids) for _, ids in items) + max_new_tokens)
    written = []
    for prompt_id, ids in tqdm(items, desc="calibrate: target writes", unit="prompt"):
        request = Request(ids, prompt_id, 0, 0.0, max_new_tokens, eos_ids, seed)
        output = generate(target, None, request, cache).tokens
        if len(output) > 1:
            written.append(Written(ids, output))
    return written


def acceptance(
    name: str,
    settings: list[dict[str, Any]],
    target: LayeredModel,
    draft_model: LayeredModel | None,
    texts: list[Written],
    ks: list[int],
    limit: int,
) -> list[dict[str, Any]]:
    """Return one record per setting of a drafter: its acceptance curve and tau at every k in `ks`."""
    proposals = _proposals(name, settings, target, draft_model, texts)
    records = []
    for setting, per_text in zip(settings, proposals, strict=True):
        rounds = {k: _replay_all(per_text, texts, k, limit) for k in ks}
        longest = curve(rounds[max(ks)], max(ks))
        curves = {k: curve(rounds[k], k) for k in ks}
        records.append(
            {
                "setting": setting,
                "conditional_alpha": longest.conditional_alpha,
                "n_reached": longest.n_reached,
                "draft_rate": longest.draft_rate,
                "n_positions": sum(longest.n_reached),
                "n_prompts": len(texts),
                "tau_by_k": {str(k): c.tau for k, c in curves.items()},
                "drafted_by_k": {str(k): {str(n): count for n, count in c.drafted.items()} for k, c in curves.items()},
            }
        )
    return records


def _replay_all(
    factories: list[Callable[[], Proposal]], texts: list[Written], k: int, limit: int
) -> list[ReplayedRound]:
    """Replay every text at draft length k; each replay starts from a fresh drafter."""
    pairs = zip(factories, texts, strict=True)
    return [one for fresh, text in pairs for one in replay(len(text.output), limit, k, fresh())]


def _proposals(
    name: str,
    settings: list[dict[str, Any]],
    target: LayeredModel,
    draft_model: LayeredModel | None,
    texts: list[Written],
) -> list[list[Callable[[], Proposal]]]:
    """Return [setting][text] -> fresh proposals, by the cheapest exact way that the kind of drafter allows."""
    if name == "early_exit":
        layers = [setting["layer"] for setting in settings]
        bar = tqdm(texts, desc="calibrate: early exit", unit="prompt")
        matches = [exit_matches(target, t.prompt, t.output, layers) for t in bar]
        return [[partial(from_matches, m[layer]) for m in matches] for layer in layers]
    if name == "small_lm":
        if draft_model is None:
            raise ConfigError("drafter.small_lm needs its model in build/models.lock.json. Run `dvc repro download`.")
        bar = tqdm(texts, desc="calibrate: small_lm", unit="prompt")
        shared: list[Callable[[], Proposal]] = [
            partial(from_matches, model_matches(draft_model, t.prompt, t.output)) for t in bar
        ]
        return [shared for _ in settings]
    return [[partial(_token_proposal, name, setting, target, t) for t in texts] for setting in settings]


def _token_proposal(name: str, setting: dict[str, Any], target: LayeredModel, text: Written) -> Proposal:
    """Proposals of a drafter that looks at tokens only."""
    drafter = registry.build(name, target, setting)
    drafter.begin(text.prompt, target.new_cache(1))
    return from_drafter(drafter, text.prompt, text.output)
