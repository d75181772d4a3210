"""The one exception type that a user is meant to read."""

from __future__ import annotations


class BreakevenError(Exception):
    """A refusal with a reason: the message names what is wrong and how to mend it.

    Entry points print it without a traceback and exit with code 2 (`breakeven.stage.run`). Anything else that
    escapes is a bug and keeps its traceback.
    """


class ConfigError(BreakevenError):
    """The configuration is refused: typo, wrong type, missing value or impossible combination."""


class HardwareError(BreakevenError):
    """The hardware asked for is not there."""


class DownloadError(BreakevenError):
    """A model or data file could not be had, or is not the file that was pinned."""


class TokenizerMismatchError(BreakevenError):
    """Draft and target do not speak the same tokens."""
