"""The decoding loop: draft, verify, accept, commit. Plain decoding is the same loop without a drafter."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from breakeven.drafters.base import EMPTY_DRAFT, Draft, Drafter
from breakeven.errors import BreakevenError
from breakeven.models.adapter import LayeredModel
from breakeven.models.cache import KVCache
from breakeven.speculative.sampling import draw, probabilities, uniforms
from breakeven.speculative.verify import Verdict, acceptance_mass, verify_greedy, verify_rejection

EndReason = Literal["reject", "full", "eos", "max_len", "no_draft"]


@dataclass(frozen=True)
class Request:
    """What to generate.

    Attributes:
        prompt: token ids.
        prompt_id: names the request's random streams.
        k: draft length; ignored without a drafter.
        temperature: 0 for greedy decoding, else rejection sampling.
        max_new_tokens: output length at most.
        eos_ids: tokens that end the output (kept as its last token).
        seed: of the run.
    """

    prompt: list[int]
    prompt_id: str
    k: int
    temperature: float
    max_new_tokens: int
    eos_ids: frozenset[int]
    seed: int


@dataclass(frozen=True)
class Round:
    """One target pass. Times in seconds; `record_s` is bookkeeping and part of no decode time."""

    ctx_len: int
    k_planned: int
    n_drafted: int
    n_accepted: int
    n_emitted: int
    end_reason: EndReason
    draft_s: float
    verify_s: float
    other_s: float
    record_s: float
    sum_min: list[float]
    p_draft: list[float]
    q_draft: list[float]
    top2_margin: float


@dataclass
class Generation:
    """What came out. `margins[i]` is the target's top-2 logit margin where output token i was chosen."""

    tokens: list[int]
    end_reason: Literal["eos", "max_len"]
    prefill_s: float
    draft_prefill_s: float
    decode_s: float
    margins: list[float]
    rounds: list[Round] = field(default_factory=list)


class Clock:
    """Wall clock that waits for the device, so that a phase holds its own work."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def __call__(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        elif self._device.type == "mps":
            torch.mps.synchronize()
        return time.perf_counter()


def generate(target: LayeredModel, drafter: Drafter | None, request: Request, cache: KVCache) -> Generation:
    """Decode one request at batch 1.

    Args:
        target: the model whose law the output has.
        drafter: None for plain decoding.
        request: what to generate.
        cache: the target's; emptied first, so that it can be reused between requests.

    Raises:
        BreakevenError: k is below 1, or prompt and output do not fit the cache or the model's context.
    """
    _check(target, drafter, request, cache)
    clock = Clock(target.device)
    started = clock()
    cache.crop(0)
    logits = target.forward(torch.tensor([request.prompt], device=target.device), cache, last_only=True)[0]
    first = _verify(logits, EMPTY_DRAFT, request, step=0)
    prefilled = clock()
    tokens, margins = [*request.prompt, first.next_token], [_margin(logits[-1])]
    draft_started = clock()
    if drafter is not None:
        drafter.begin(request.prompt, cache)
    out = Generation([], "max_len", prefilled - started, clock() - draft_started, 0.0, margins)
    limit = len(request.prompt) + request.max_new_tokens
    while len(tokens) < limit and tokens[-1] not in request.eos_ids:
        out.rounds.append(_round(target, drafter, request, tokens, limit, cache, margins, len(out.rounds) + 1, clock))
    out.decode_s = sum(r.draft_s + r.verify_s + r.other_s for r in out.rounds)
    out.tokens = tokens[len(request.prompt) :]
    out.end_reason = "eos" if tokens[-1] in request.eos_ids else "max_len"
    return out


def _round(
    target: LayeredModel,
    drafter: Drafter | None,
    request: Request,
    tokens: list[int],
    limit: int,
    cache: KVCache,
    margins: list[float],
    step: int,
    clock: Clock,
) -> Round:
    """Draft, verify, accept, commit; extends `tokens` and `margins` in place."""
    ctx_len = len(tokens)
    # A draft beyond the last token that fits could never be emitted; the bonus needs one place too.
    k = min(request.k, limit - ctx_len - 1) if drafter is not None else 0
    t0 = clock()
    draft = _draft(drafter, request, tokens, k, step)
    t1 = clock()
    inputs = [tokens[-1], *draft.tokens]
    if drafter is None:
        logits = target.forward(torch.tensor([inputs], device=target.device), cache)[0]
    else:
        logits = drafter.target_logits(inputs)
    t2 = clock()
    verdict = _verify(logits, draft, request, step)
    emitted, n_accepted, n_drafted, reason = _truncate(draft, verdict, request)
    tokens.extend(emitted)
    # The newest token is not in any cache yet; everything behind the accepted ones goes.
    cache.crop(len(tokens) - 1)
    if drafter is not None:
        drafter.commit(len(tokens) - 1)
    t3 = clock()
    margins.extend(_margin(row) for row in logits[: len(emitted)])
    tested = n_accepted + (reason == "reject")
    p_draft, q_draft, sum_min = _evidence(logits, draft, tested, request.temperature)
    return Round(
        ctx_len, k, n_drafted, n_accepted, len(emitted), reason, t1 - t0, t2 - t1, t3 - t2, clock() - t3,
        sum_min, p_draft, q_draft, margins[-1],
    )  # fmt: skip


def _draft(drafter: Drafter | None, request: Request, tokens: list[int], k: int, step: int) -> Draft:
    """Ask for a draft and cut it behind an end-of-sequence token: nothing after it could be emitted."""
    if drafter is None:
        return EMPTY_DRAFT
    draws: list[float] = []
    if drafter.samples and request.temperature > 0:
        draws = uniforms(request.seed, request.prompt_id, step, "draft", k)
    draft = drafter.propose(tokens, k, request.temperature, draws)
    if len(draft.tokens) > k:
        raise ValueError(f"drafter {drafter.name} proposed {len(draft.tokens)} tokens, {k} were asked for.")
    for i, token in enumerate(draft.tokens):
        if token in request.eos_ids:
            return Draft(draft.tokens[: i + 1], None if draft.q is None else draft.q[: i + 1])
    return draft


def _verify(logits: Tensor, draft: Draft, request: Request, step: int) -> Verdict:
    """Greedy or rejection verification of logits [k+1, V]; plain decoding verifies an empty draft."""
    if request.temperature == 0:
        return verify_greedy(logits, draft.tokens)
    p = probabilities(logits, request.temperature)
    if not draft.tokens:
        stream = uniforms(request.seed, request.prompt_id, step, "next", 1)
        return Verdict(0, draw(p[0], stream[0]), "bonus")
    accept = uniforms(request.seed, request.prompt_id, step, "accept", len(draft.tokens))
    rest = uniforms(request.seed, request.prompt_id, step, "next", 1)
    return verify_rejection(p, draft.q, draft.tokens, accept, rest[0])


def _truncate(draft: Draft, verdict: Verdict, request: Request) -> tuple[list[int], int, int, EndReason]:
    """Cut at end of sequence first, then count: (emitted, accepted, drafted, why the round ended)."""
    accepted = draft.tokens[: verdict.n_accepted]
    if accepted and accepted[-1] in request.eos_ids:
        return accepted, len(accepted), len(accepted), "eos"
    emitted = [*accepted, verdict.next_token]
    if not draft.tokens:
        return emitted, 0, 0, "no_draft"
    reason: EndReason = "reject" if verdict.kind == "recovered" else "full"
    return emitted, len(accepted), len(draft.tokens), reason


def _margin(logits: Tensor) -> float:
    """Return the difference of the two largest logits [V]."""
    top: list[float] = torch.topk(logits.float(), 2).values.tolist()
    return top[0] - top[1]


def _evidence(
    logits: Tensor, draft: Draft, tested: int, temperature: float
) -> tuple[list[float], list[float], list[float]]:
    """Return p, q and sum_y min(p, q) of the tested draft tokens. At temperature 0 p is one-hot at the best token."""
    tokens = draft.tokens[:tested]
    if temperature == 0:
        p_draft = [float(best == token) for best, token in zip(logits.argmax(-1).tolist(), tokens, strict=False)]
        return p_draft, [1.0] * tested, p_draft
    p = probabilities(logits[:tested], temperature)
    q = None if draft.q is None else draft.q[:tested]
    q_draft = [1.0] * tested if q is None else [float(q[i, token]) for i, token in enumerate(tokens)]
    return [float(p[i, token]) for i, token in enumerate(tokens)], q_draft, acceptance_mass(p, q, tokens)


def _check(target: LayeredModel, drafter: Drafter | None, request: Request, cache: KVCache) -> None:
    if drafter is not None and request.k < 1:
        raise BreakevenError(f"k is {request.k}. A drafter needs a draft length of at least 1.")
    if not request.prompt:
        raise BreakevenError(f"prompt {request.prompt_id} is empty. Give it at least one token.")
    if request.max_new_tokens < 1:
        raise BreakevenError(f"max_new_tokens is {request.max_new_tokens}. It must be at least 1.")
    context = target.max_context_tokens if drafter is None else drafter.max_context_tokens
    if drafter is not None and request.k >= context:
        raise BreakevenError(f"k is {request.k} and the context holds {context} tokens. Choose a k below that.")
    room = min(cache.capacity, context)
    needed = len(request.prompt) + request.max_new_tokens
    if needed > room:
        raise BreakevenError(
            f"prompt {request.prompt_id} has {len(request.prompt)} tokens; with {request.max_new_tokens} new ones it "
            f"needs {needed}, and there is room for {room}. Shorten it, lower speculate.max_new_tokens or raise "
            "hardware.max_context_tokens."
        )
