"""The parts of verification: acceptance at its threshold, the residual, its logged mass, the greedy branch.

The law that they make together is in test_verify_law.py.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from breakeven.speculative.verify import Verdict, acceptance_mass, residual, verify_greedy, verify_rejection
from helpers.exact import law

ROW = st.lists(st.integers(0, 4), min_size=3, max_size=3).filter(any).map(lambda w: np.array(w) / sum(w))


def test_acceptance_at_its_exact_breakpoint() -> None:
    p, q = torch.tensor([[0.25, 0.75], [0.5, 0.5]]).double(), torch.tensor([[0.5, 0.5]]).double()
    just_below = math.nextafter(0.5, 0)
    assert verify_rejection(p, q, [0], [just_below], 0.0) == Verdict(1, 0, "bonus")
    assert verify_rejection(p, q, [0], [0.5], 0.0) == Verdict(0, 1, "recovered")


@given(st.floats(0, 1, width=32, exclude_min=True))
def test_p_equal_to_q_is_never_rejected(value: float) -> None:
    rows = torch.full((2, 2), value)
    assert verify_rejection(rows, rows[:1], [0], [math.nextafter(1.0, 0.0)], 0.0).kind == "bonus"


def test_a_draft_of_probability_0_is_never_accepted_not_even_at_u_0() -> None:
    p, q = torch.tensor([[0.0, 1.0]] * 2), torch.tensor([[1.0, 0.0]])
    assert verify_rejection(p, q, [0], [0.0], 0.0) == Verdict(0, 1, "recovered")
    assert verify_rejection(p, None, [0], [0.0], 0.0) == Verdict(0, 1, "recovered")


@given(ROW, ROW)
def test_residual_is_a_law_that_completes_the_overlap(p_row: np.ndarray, q_row: np.ndarray) -> None:
    p, q = torch.tensor(p_row), torch.tensor(q_row)
    rest = residual(p, q)
    assert rest.min() >= 0
    assert float(rest.sum()) == pytest.approx(1, abs=1e-12)
    rejected = 1 - float(torch.minimum(p, q).sum())
    torch.testing.assert_close(torch.minimum(p, q) + rejected * rest, p, rtol=0, atol=1e-12)


def test_residual_without_mass_is_p_and_not_nan_5() -> None:
    p = torch.tensor([0.2, 0.8])
    assert torch.equal(residual(p, p.clone()), p)


def test_inputs_are_left_as_they_were() -> None:
    p, q = torch.tensor([[0.1, 0.9], [0.4, 0.6]]), torch.tensor([[0.9, 0.1]])
    p_before, q_before, draft, accept = p.clone(), q.clone(), [0], [0.9]
    verify_rejection(p, q, draft, accept, 0.3)
    assert torch.equal(p, p_before)
    assert torch.equal(q, q_before)
    assert (draft, accept) == ([0], [0.9])


@given(ROW, ROW)
def test_acceptance_mass_is_the_probability_to_accept(p_row: np.ndarray, q_row: np.ndarray) -> None:
    p, q = torch.tensor(np.array([p_row, p_row])), torch.tensor(q_row)[None]
    accepted = sum(
        float(q_row[x]) * law(lambda s, x=x: verify_rejection(p, q, [x], [s.uniform(0)], 0.5).n_accepted).get(1, 0.0)
        for x in range(3)
        if q_row[x] > 0
    )
    assert acceptance_mass(p, q, [0]) == [pytest.approx(accepted, abs=1e-12)]
    for x in range(3):
        one_hot = law(lambda s, x=x: verify_rejection(p, None, [x], [s.uniform(0)], 0.5).n_accepted).get(1, 0.0)
        assert acceptance_mass(p, None, [x]) == [pytest.approx(one_hot, abs=1e-12)]


@given(
    st.lists(st.lists(st.integers(-2, 2), min_size=3, max_size=3), min_size=1, max_size=5),
    st.lists(st.integers(0, 2), min_size=4, max_size=4),
)
def test_greedy_equals_decoding_one_by_one(logits: list[list[int]], draft: list[int]) -> None:
    k = len(logits) - 1
    best = [max(range(3), key=lambda token, row=row: (row[token], -token)) for row in logits]
    agreeing = list(itertools.takewhile(lambda i: draft[i] == best[i], range(k)))
    verdict = verify_greedy(torch.tensor(logits, dtype=torch.float64), draft[:k])
    kind = "bonus" if len(agreeing) == k else "recovered"
    assert verdict == Verdict(len(agreeing), best[len(agreeing)], kind)
