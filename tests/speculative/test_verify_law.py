"""The verification kernel: the law that it induces, in exact arithmetic and without sampling.

`require_lossless` takes the kernel as an argument. It passes the real one (and another lossless one, so that it is
not merely the real one's mirror image) and must refuse each of the published bugs below.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from breakeven.speculative.sampling import draw
from breakeven.speculative.verify import Verdict, residual, verify_rejection
from helpers.exact import Source, law, total_variation

Kernel = Callable[[Tensor, Tensor | None, list[int], list[Any], Any], Verdict]
Context = tuple[int, ...]
Tree = dict[Context, np.ndarray]  # next-token law after every context

TOLERANCE = 1e-12


def contexts(n_tokens: int, depth: int) -> list[Context]:
    return [c for length in range(depth + 1) for c in itertools.product(range(n_tokens), repeat=length)]


def random_tree(rng: np.random.Generator, n_tokens: int, depth: int, zeros: float = 0.2) -> Tree:
    """Random laws with some probabilities exactly 0."""
    tree = {}
    for context in contexts(n_tokens, depth):
        row = rng.exponential(size=n_tokens) * (rng.random(n_tokens) >= zeros)
        row[rng.integers(n_tokens)] += 0.1
        tree[context] = row / row.sum()
    return tree


def emitted_law(kernel: Kernel, p: Tree, q: Tree | None, draft: Context, k: int) -> dict[Context, float]:
    """Law of k + 1 tokens: what one round emits for this draft, completed by the target's own law."""
    p_rows = torch.tensor(np.array([p[draft[:i]] for i in range(k + 1)]))
    q_rows = None if q is None else torch.tensor(np.array([q[draft[:i]] for i in range(k)]))

    def run(source: Source) -> Context:
        accept = [source.uniform(("accept", i)) for i in range(k)]
        verdict = kernel(p_rows, q_rows, list(draft), accept, source.uniform("next"))
        return (*draft[: verdict.n_accepted], verdict.next_token)

    completed: dict[Context, float] = defaultdict(float)
    for emitted, weight in law(run).items():
        for rest in itertools.product(range(len(p[()])), repeat=k + 1 - len(emitted)):
            tokens = (*emitted, *rest)
            tail = math.prod(p[tokens[:i]][tokens[i]] for i in range(len(emitted), k + 1))
            completed[tokens] += weight * tail
    return completed


def require_lossless(kernel: Kernel, p: Tree, q: Tree | None, k: int, deterministic: Context = ()) -> None:
    """Assert that drafting from q and verifying with the kernel gives k + 1 tokens of the target's law."""
    n_tokens = len(p[()])
    induced: dict[Context, float] = defaultdict(float)
    drafts = [deterministic] if q is None else itertools.product(range(n_tokens), repeat=k)
    for draft in drafts:
        probability = 1.0 if q is None else math.prod(q[draft[:i]][draft[i]] for i in range(k))
        if probability > 0:
            for tokens, weight in emitted_law(kernel, p, q, draft, k).items():
                induced[tokens] += probability * weight
    expected = {
        tokens: math.prod(p[tokens[:i]][tokens[i]] for i in range(k + 1))
        for tokens in itertools.product(range(n_tokens), repeat=k + 1)
    }
    assert sum(induced.values()) == pytest.approx(1.0, abs=TOLERANCE)
    assert total_variation(induced, expected) < TOLERANCE


# --- the real kernel ---

ROW = st.lists(st.integers(0, 4), min_size=3, max_size=3).filter(any).map(lambda w: np.array(w) / sum(w))


@given(st.lists(ROW, min_size=4, max_size=4), ROW)
def test_one_draft_token_any_p_and_q(p_rows: list[np.ndarray], q_row: np.ndarray) -> None:
    p = dict(zip(contexts(3, 1), p_rows, strict=True))
    require_lossless(verify_rejection, p, {(): q_row}, 1)


@given(st.lists(ROW, min_size=4, max_size=4), st.integers(0, 2))
def test_one_deterministic_draft_token_any_p(p_rows: list[np.ndarray], token: int) -> None:
    p = dict(zip(contexts(3, 1), p_rows, strict=True))
    require_lossless(verify_rejection, p, None, 1, (token,))


@pytest.mark.parametrize(("n_tokens", "k"), [(2, 2), (4, 2), (2, 3), (3, 3)])
@given(seed=st.integers(0, 2**32))
@settings(max_examples=25)
def test_several_draft_tokens(n_tokens: int, k: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    p, q = random_tree(rng, n_tokens, k), random_tree(rng, n_tokens, k - 1)
    require_lossless(verify_rejection, p, q, k)
    require_lossless(verify_rejection, p, None, k, tuple(rng.integers(n_tokens, size=k).tolist()))


SPECIAL = {
    "equal": ([0.5, 0.3, 0.2], [0.5, 0.3, 0.2]),
    "disjoint": ([0.6, 0.4, 0.0], [0.0, 0.0, 1.0]),
    "one-hot q where p is largest": ([0.7, 0.2, 0.1], [1.0, 0.0, 0.0]),
    "one-hot q where p is 0": ([0.0, 0.2, 0.8], [1.0, 0.0, 0.0]),
    "one-hot p": ([0.0, 1.0, 0.0], [0.3, 0.3, 0.4]),
    "both one-hot, equal": ([0.0, 1.0, 0.0], [0.0, 1.0, 0.0]),
    "equal but for rounding": ([0.1 + 0.2, 0.3, 0.4 - 5e-17], [0.3, 0.1 + 0.2, 0.4]),
    "tiny overlap": ([1 - 1e-12, 1e-12, 0.0], [1e-300, 1.0, 0.0]),
}


@pytest.mark.parametrize("name", SPECIAL)
def test_special_pairs_5_82(name: str) -> None:
    p_row, q_row = (np.array(row) for row in SPECIAL[name])
    p = dict.fromkeys(contexts(3, 2), p_row)
    q = dict.fromkeys(contexts(3, 1), q_row)
    require_lossless(verify_rejection, p, q, 2)


def test_another_lossless_kernel_passes_too() -> None:
    # Exact match: sample the target, accept while it agrees. Lossless with a lower acceptance (mlx-lm PR 1709).
    def exact_match(p, q, draft, accept, following):
        for i, token in enumerate(draft):
            sampled = draw(p[i], accept[i])
            if sampled != token:
                return Verdict(i, sampled, "recovered")
        return Verdict(len(draft), draw(p[len(draft)], following), "bonus")

    require_lossless(exact_match, *support_pair(), 2)


def test_a_drawn_token_may_be_verified_as_if_it_had_been_certain() -> None:
    # Given the token, its proposal was certain: q = one-hot is right for any way to propose (EAGLE #93, #110).
    def as_one_hot(p, q, draft, accept, following):
        return verify_rejection(p, None, draft, accept, following)

    require_lossless(as_one_hot, *support_pair(), 2)


# --- planted bugs: each was published, each must be refused ---


def rejection_with(
    *,
    accepts: Callable[[Any, float, float], bool] = lambda u, p, q: u * q < p,
    rest: Callable[[Tensor, Tensor], Tensor] = residual,
    take: Callable[[Tensor, Any], int] = draw,
    bonus_row: int = 0,
    accept_draw: Callable[[list[Any], int], Any] = lambda draws, i: draws[i],
    next_draw: Callable[[list[Any], int, Any], Any] = lambda draws, i, following: following,
) -> Kernel:
    """Return speculative sampling with one part exchanged."""

    def kernel(p, q, draft, accept, following):
        for i, token in enumerate(draft):
            if accepts(accept_draw(accept, i), float(p[i, token]), float(q[i, token])):
                continue
            return Verdict(i, take(rest(p[i], q[i]), next_draw(accept, i, following)), "recovered")
        end = len(draft)
        return Verdict(end, take(p[end + bonus_row], next_draw(accept, end - 1, following)), "bonus")

    return kernel


def distorted(q: Tensor, power: float) -> Tensor:
    return q**power / (q**power).sum(-1, keepdim=True)


def inverse_cdf_of_a_law(weights: Tensor, uniform: Any) -> int:
    """A draw that trusts its weights to sum to 1; what is missing goes to the last token."""
    index = torch.searchsorted(torch.cumsum(weights, 0), uniform, right=True)
    return min(int(index), len(weights) - 1)


def normalised_with_epsilon(p: Tensor, q: Tensor) -> Tensor:
    rest = torch.clamp(p - q, min=0)
    return rest / (rest.sum() + 1e-6)


def flattened(q: Tensor) -> Tensor:
    return 0.5 * q + 0.5 / q.shape[-1]


def within_draft_support(p: Tensor, q: Tensor) -> Tensor:
    inside = torch.where(q > 0, residual(p, q), torch.zeros_like(p))
    return inside if inside.sum() > 0 else p


BROKEN: dict[str, Kernel] = {
    "residual not subtracted (EAGLE #20)": rejection_with(rest=lambda p, q: p),
    "residual of the wrong sign": rejection_with(rest=lambda p, q: residual(q, p)),
    "residual |p - q|": rejection_with(rest=lambda p, q: (p - q).abs()),
    "residual divided by sum + eps (LayerSkip)": rejection_with(
        rest=normalised_with_epsilon, take=inverse_cdf_of_a_law
    ),
    "residual in the trimmed vocabulary only (FR-Spec)": rejection_with(rest=within_draft_support),
    "recovered token drawn from q": rejection_with(rest=lambda p, q: q),
    "drawn from q, reported at another temperature (transformers #40976)": lambda p, q, *rest: verify_rejection(
        p, distorted(q, 0.5), *rest
    ),
    "drawn from a sharper law than reported, as argmax with its softmax is (transformers #32867)": (
        lambda p, q, *rest: verify_rejection(p, flattened(q), *rest)
    ),
    "p of the previous position": lambda p, q, *rest: verify_rejection(torch.cat([p[:1], p[:-1]]), q, *rest),
    "temperature on one side only (vLLM #10198)": lambda p, q, *rest: verify_rejection(distorted(p, 0.8), q, *rest),
    "accept iff p >= q": rejection_with(accepts=lambda u, p, q: p >= q),
    "accept iff u < p": rejection_with(accepts=lambda u, p, q: u < p),
    "accept at a threshold (SGLang)": rejection_with(accepts=lambda u, p, q: u * q < 1.1 * p),
    "accept everything": rejection_with(accepts=lambda u, p, q: True),
    "bonus from the row before": rejection_with(bonus_row=-1),
    "one draw for every position (LLMSpeculativeSampling)": rejection_with(accept_draw=lambda draws, i: draws[0]),
    "the accept draw serves the next token (Draft&Verify)": rejection_with(
        next_draw=lambda draws, i, following: draws[i]
    ),
}


def support_pair() -> tuple[Tree, Tree]:
    """Trees with all kinds of entries: q = 0 < p, p = 0 < q, p < q, p > q."""
    rng = np.random.default_rng(3)
    return random_tree(rng, 4, 2), random_tree(rng, 4, 1, zeros=0.35)


def test_unmodified_skeleton_of_the_planted_bugs_is_lossless() -> None:
    require_lossless(rejection_with(), *support_pair(), 2)


@pytest.mark.parametrize("bug", BROKEN)
def test_planted_bug_is_refused(bug: str) -> None:
    p, q = support_pair()
    with pytest.raises(AssertionError):
        require_lossless(BROKEN[bug], p, q, 2)
