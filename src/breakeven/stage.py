"""What every pipeline script shares: refusals become exit code 2, signals end cleanly, the hub stays off."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from types import FrameType

from breakeven.errors import BreakevenError

EXIT_REFUSED = 2
EXIT_INTERRUPTED = 130
EXIT_TERMINATED = 143

_OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}


class _Terminated(BaseException):
    """SIGTERM as an exception, so that `finally` blocks run and temporary files go."""


def _on_sigterm(signum: int, frame: FrameType | None) -> None:
    raise _Terminated


def run(stage: Callable[[], None], *, offline: bool = True) -> None:
    """Run one stage as a process: call it, translate how it ended into an exit code, and exit.

    Args:
        stage: the work; raises `BreakevenError` to refuse.
        offline: switch hub access off before libraries that read these variables are imported.
    """
    if offline:
        os.environ.update(_OFFLINE)
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    signal.signal(signal.SIGTERM, _on_sigterm)
    try:
        stage()
    except BreakevenError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(EXIT_REFUSED)
    except KeyboardInterrupt:
        print("interrupted: nothing was left half-written; run the same command again.", file=sys.stderr)
        sys.exit(EXIT_INTERRUPTED)
    except _Terminated:
        print("terminated: nothing was left half-written; run the same command again.", file=sys.stderr)
        sys.exit(EXIT_TERMINATED)
