"""From logits to a token: temperature, inverse-CDF draws, and the random streams of a request."""

from __future__ import annotations

import hashlib

import numpy as np
import torch
from torch import Tensor

# One stream per decision, so that no draw is ever used twice (Draft&Verify shared one list for two decisions).
STREAMS = ("draft", "accept", "next")


def uniforms(seed: int, prompt_id: str, step: int, stream: str, n: int) -> list[float]:
    """Return n uniform draws in [0, 1) that depend only on (seed, prompt, step, stream).

    Args:
        seed: of the run.
        prompt_id: whose request it is; two prompts never share a stream (vLLM #9441, TensorRT-LLM #19487).
        step: 0 for the token behind the prompt, then the number of the target pass.
        stream: one of `STREAMS`: "draft" draws the proposals, "accept" tests them, "next" draws the recovered or
            bonus token.
        n: how many.

    Raises:
        ValueError: no such stream.
    """
    if stream not in STREAMS:
        raise ValueError(f"unknown random stream {stream!r}. Valid: {', '.join(STREAMS)}.")
    # A hash with output of any length, not a seeded generator: no two (seed, prompt, step, stream) share a state,
    # whatever their sizes, and there is none to set up (a tenth of a millisecond, three times a round).
    name = f"{seed}\0{prompt_id}\0{step}\0{stream}"
    bits = np.frombuffer(hashlib.shake_256(name.encode()).digest(8 * n), dtype="<u8")
    # The top 53 bits as a multiple of 2^-53: every float64 in [0, 1) that numpy's own generators return.
    draws: list[float] = ((bits >> 11) * 2.0**-53).tolist()
    return draws


def probabilities(logits: Tensor, temperature: float) -> Tensor:
    """Return softmax(logits / temperature) in float32 (float64 stays), for target and draft alike.

    Args:
        logits: [..., V].
        temperature: above 0. Greedy decoding is its own branch, not a small temperature (inf and NaN lie there).

    Raises:
        ValueError: temperature is not above 0.
    """
    if temperature <= 0:
        raise ValueError(f"temperature {temperature} has no distribution; use the greedy branch for 0.")
    wide = logits if logits.dtype == torch.float64 else logits.float()
    return torch.softmax(wide / temperature, dim=-1)


def draw(weights: Tensor, uniform: float) -> int:
    """Draw an index from non-negative weights [V] by inverse CDF; zero-weight entries are never drawn.

    Raises:
        ValueError: the weights have no mass.
    """
    # float64: a float32 running sum over 150k entries loses the small ones.
    cumulative = torch.cumsum(weights.double(), dim=0)
    total = cumulative[-1].item()
    if not total > 0:
        raise ValueError("cannot draw: the weights have no mass.")
    # right=True: the first entry whose running sum is strictly above the target, which has weight > 0.
    index = int(torch.searchsorted(cumulative, uniform * total, right=True).item())
    if index >= len(weights):
        # uniform * total rounded up to the total: take the last entry with mass.
        index = int(torch.nonzero(weights)[-1].item())
    return index
