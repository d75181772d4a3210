"""Fabricated results, and drawing without the slow last step."""

from __future__ import annotations

import pytest
from matplotlib.figure import Figure
from tests import synthetic

from breakeven.reporting.data import Results
from helpers import reported


@pytest.fixture(scope="session")
def results() -> Results:
    """A complete run: ngram pays, early_exit does not."""
    return reported.results(synthetic.Truth(ks=(1, 2, 4)))


@pytest.fixture
def no_ink(monkeypatch: pytest.MonkeyPatch) -> None:
    """Build every figure but do not render it: what is tested is everything up to the ink."""
    monkeypatch.setattr(Figure, "savefig", lambda self, buffer, **_: buffer.write("<svg/>"))
