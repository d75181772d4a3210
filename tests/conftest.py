"""Settings of every test: helpers on the path, one thread, no network."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from hypothesis import settings

os.environ.setdefault("HF_HUB_OFFLINE", "1")
# Test modules are imported by path (--import-mode=importlib), so that shared helpers need a place of their own.
sys.path.insert(0, str(Path(__file__).parent))

# The machine is shared and small: a slow example is no failure; and a run is the same everywhere.
settings.register_profile("breakeven", deadline=None, derandomize=True)
settings.load_profile("breakeven")


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    import torch

    torch.set_num_threads(1)
