"""Verification: pure functions of what the target says (p), what the draft said (q) and uniform draws.

Terms as in vLLM: *accepted* draft tokens, then either a *recovered* token (drawn from the residual after a rejection)
or a *bonus* token (every draft token was accepted, the target's next one comes for free).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from breakeven.speculative.sampling import draw


@dataclass(frozen=True)
class Verdict:
    """How one round ended."""

    n_accepted: int
    next_token: int
    kind: Literal["recovered", "bonus"]


def verify_greedy(logits: Tensor, draft: list[int]) -> Verdict:
    """Accept the longest prefix of the draft that greedy decoding would have written.

    Args:
        logits: target logits [k+1, V]; row i predicts what follows i accepted draft tokens.
        draft: k token ids.
    """
    best: list[int] = logits.argmax(dim=-1).tolist()
    for i, token in enumerate(draft):
        if token != best[i]:
            return Verdict(i, best[i], "recovered")
    return Verdict(len(draft), best[len(draft)], "bonus")


def residual(p: Tensor, q: Tensor) -> Tensor:
    """Return max(p - q, 0) [V], normalised; p itself where nothing is left (p == q, only reachable by rounding)."""
    rest = torch.clamp(p - q, min=0.0)
    mass = rest.sum()
    return rest / mass if mass > 0 else p


def verify_rejection(
    p: Tensor, q: Tensor | None, draft: list[int], accept_uniforms: list[float], next_uniform: float
) -> Verdict:
    """Speculative sampling (Chen et al. 2023, algorithm 2; Leviathan et al. 2023, algorithm 1).

    Draft token x_i is accepted with probability min(1, p_i(x_i) / q_i(x_i)); after the first rejection the next token
    is drawn from the residual, after none from p_{k+1}. The law of the output is that of the target, exactly, if
    q is what the draft was drawn from.

    Args:
        p: target probabilities [k+1, V].
        q: draft probabilities [k, V]; None for a deterministic drafter, whose q is one-hot.
        draft: k token ids.
        accept_uniforms: k draws in [0, 1), one a position.
        next_uniform: the draw for the recovered or bonus token.
    """
    for i, token in enumerate(draft):
        q_token = 1.0 if q is None else float(q[i, token])
        # u < p/q without the division: q == 0 cannot be drawn, and p == q always passes.
        if accept_uniforms[i] * q_token < float(p[i, token]):
            continue
        return Verdict(i, draw(residual(p[i], _row(p, q, i, token)), next_uniform), "recovered")
    return Verdict(len(draft), draw(p[len(draft)], next_uniform), "bonus")


def _row(p: Tensor, q: Tensor | None, i: int, token: int) -> Tensor:
    """Return q_i [V], one-hot if the drafter is deterministic."""
    if q is not None:
        return q[i]
    one_hot = torch.zeros_like(p[i])
    one_hot[token] = 1.0
    return one_hot


def acceptance_mass(p: Tensor, q: Tensor | None, draft: list[int]) -> list[float]:
    """Return sum_y min(p_i(y), q_i(y)) for i = 1..k: the acceptance probability at each prefix (Theorem 3.5)."""
    if q is None:
        return [float(p[i, token]) for i, token in enumerate(draft)]
    overlap: list[float] = torch.minimum(p[: len(draft)], q).sum(dim=-1).tolist()
    return overlap
