"""Settings of every test: helpers on the path, one thread, no network."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from hypothesis import settings

os.environ.setdefault("HF_HUB_OFFLINE", "1")
# Read when torch is first imported, so that tests without it do not pay for its import.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Test modules are imported by path (--import-mode=importlib), so that shared helpers need a place of their own.
sys.path.insert(0, str(Path(__file__).parent))

# The machine is shared and small: a slow example is no failure; and a run is the same everywhere.
settings.register_profile("breakeven", deadline=None, derandomize=True)
settings.load_profile("breakeven")
