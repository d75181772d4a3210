"""Local (teacher-forced) errors of quantized keys and values: scores, attention weights, attention output.

With S = scaling * Q K^T, A = softmax(S) over the allowed keys (causal, sliding window) and O = A V, and a hat for
what quantized keys or values give:

    attention     ||A - A^||_F / ||A||_F                 the post's metric; does not depend on V
    scores        ||P(S - S^)||_F / ||P S||_F            P removes each row's mean over allowed keys, as softmax does
    output        ||O - O^||_F / ||O||_F                 with K, V or both quantized

Everything is returned as sums of squares per text and KV head (its group of query heads together), so that any
aggregate can be formed. Masked entries never enter. Query rows are worked through in blocks: the upper triangle is
never computed, and intermediate results stay in the processor's cache. Arithmetic is float32; squared norms of rows
are summed in float64.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from breakeven.errors import BreakevenError

_ROWS_PER_BLOCK = 64


@dataclass(frozen=True)
class Block:
    """A block of query rows and the keys that any of them may see.

    `N` stands for the query heads of a KV head times the rows of the block.

    Attributes:
        q: [texts, KV heads, N, d] queries times scaling.
        keys: the range of keys.
        allowed: [rows, keys] 1.0 where a row sees a key, else 0.0.
        n_allowed: [rows, 1] keys that a row sees.
        scores: [texts, KV heads, N, keys], each row without its mean; -inf where not allowed.
        weights: [texts, KV heads, N, keys] A.
        output: [texts, KV heads, N, d] O.
    """

    q: Tensor
    keys: slice
    allowed: Tensor
    n_allowed: Tensor
    scores: Tensor
    weights: Tensor
    output: Tensor


@dataclass(frozen=True)
class Reference:
    """Exact attention of one layer, and its squared norms: [texts, KV heads] float64 each."""

    k: Tensor
    v: Tensor
    blocks: list[Block]
    attention: Tensor
    score: Tensor
    output: Tensor


@dataclass(frozen=True)
class KeyErrors:
    """Squared errors from quantized keys, [texts, KV heads] float64 each; `outputs` has one entry a value tensor."""

    attention: Tensor
    score: Tensor
    outputs: list[Tensor]


def reference(
    q: Tensor, k: Tensor, v: Tensor, *, scaling: float, window: int | None = None, skip_rows: int = 0
) -> Reference:
    """Compute exact attention.

    Args:
        q: [texts, query heads, T, d] queries as attention uses them (after rotary embedding).
        k: [texts, KV heads, T, d] keys likewise; query head h reads KV head h // (query heads / KV heads).
        v: [texts, KV heads, T, d] values.
        scaling: of the scores.
        window: keys that a row sees at most, its own included; None: all up to its own.
        skip_rows: first query rows to leave out (row 0 has A = 1 and no error).

    Raises:
        BreakevenError: shapes do not fit, or every row is skipped.
    """
    texts, query_heads, n_tokens, d = q.shape
    kv_heads = k.shape[1]
    if query_heads % kv_heads or k.shape != v.shape or k.shape != (texts, kv_heads, n_tokens, d):
        raise BreakevenError(f"queries {tuple(q.shape)} do not fit keys {tuple(k.shape)} and values {tuple(v.shape)}.")
    if not 0 <= skip_rows < n_tokens:
        raise BreakevenError(f"skip_rows is {skip_rows}, but there are {n_tokens} rows.")
    q, k, v = q.float() * scaling, k.float(), v.float()
    q = q.unflatten(1, (kv_heads, query_heads // kv_heads))
    blocks = []
    for start in range(skip_rows, n_tokens, _ROWS_PER_BLOCK):
        rows = slice(start, min(start + _ROWS_PER_BLOCK, n_tokens))
        blocks.append(_block(q[..., rows, :].flatten(2, 3), k, v, rows, window))
    return Reference(
        k,
        v,
        blocks,
        attention=_total([_square(block.weights) for block in blocks]),
        score=_total([_square(block.scores.masked_fill(block.scores.isinf(), 0.0)) for block in blocks]),
        output=_total([_square(block.output) for block in blocks]),
    )


def _block(q: Tensor, k: Tensor, v: Tensor, rows: slice, window: int | None) -> Block:
    first = 0 if window is None else max(0, rows.start - window + 1)
    keys = slice(first, rows.stop)
    row = torch.arange(rows.start, rows.stop, device=q.device)[:, None]
    key = torch.arange(keys.start, keys.stop, device=q.device)[None]
    allowed = (key <= row) & (key > row - (window or rows.stop))
    mask, count = allowed.float(), allowed.sum(-1, keepdim=True).float()
    scores = _centre(q @ k[..., keys, :].mT, mask, count)
    scores = _by_row(scores, mask).masked_fill(~allowed, -torch.inf).flatten(2, 3)
    weights = scores.softmax(-1)
    return Block(q, keys, mask, count, scores, weights, weights @ v[..., keys, :])


def key_errors(exact: Reference, k_hat: Tensor, values: Sequence[Tensor]) -> KeyErrors:
    """Squared errors from quantized keys.

    Args:
        exact: the layer's exact attention.
        k_hat: [texts, KV heads, T, d] keys as the quantized cache returns them.
        values: value tensors to form outputs with: the exact ones (K only) and quantized ones (both).
    """
    difference = exact.k - k_hat.float()
    stacked = torch.cat([value.float() for value in values], dim=-1)
    attention, score, outputs = [], [], []
    for block in exact.blocks:
        # S - S^ without each row's mean. Softmax ignores what a whole row shares, so S minus this has the weights A^.
        change = _centre(block.q @ difference[..., block.keys, :].mT, block.allowed, block.n_allowed)
        score.append(_square(change))
        weights = (block.scores - change).softmax(-1)
        output = weights @ stacked[..., block.keys, :]
        attention.append(_square(weights.sub_(block.weights)))
        outputs.append([_square(part - block.output) for part in output.chunk(len(values), dim=-1)])
    return KeyErrors(_total(attention), _total(score), [_total(parts) for parts in zip(*outputs, strict=True)])


def value_errors(exact: Reference, v_hats: Sequence[Tensor]) -> list[Tensor]:
    """Squared output errors from quantized values alone, one [texts, KV heads] tensor each: O - O^ = A (V - V^)."""
    stacked = torch.cat([exact.v - v_hat.float() for v_hat in v_hats], dim=-1)
    sums = []
    for block in exact.blocks:
        output = block.weights @ stacked[..., block.keys, :]
        sums.append([_square(part) for part in output.chunk(len(v_hats), dim=-1)])
    return [_total(parts) for parts in zip(*sums, strict=True)]


def _centre(scores: Tensor, allowed: Tensor, n_allowed: Tensor) -> Tensor:
    """Remove each row's mean over its allowed keys, in place; entries that are not allowed become 0."""
    by_row = _by_row(scores, allowed)
    by_row *= allowed
    by_row -= by_row.sum(-1, keepdim=True) / n_allowed
    by_row *= allowed
    return scores


def _by_row(tensor: Tensor, allowed: Tensor) -> Tensor:
    """View [texts, KV heads, N, keys] as [texts, KV heads, query heads of a KV head, rows, keys]."""
    view: Tensor = tensor.unflatten(2, (-1, allowed.shape[0]))
    return view


def _square(tensor: Tensor) -> Tensor:
    """Return squared Frobenius norms [texts, KV heads] in float64; a row's norm is taken in float32."""
    rows: Tensor = torch.linalg.vector_norm(tensor, dim=-1)
    return rows.double().square().sum(-1)


def _total(parts: Sequence[Tensor]) -> Tensor:
    return torch.stack(list(parts)).sum(0)
