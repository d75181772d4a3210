"""Breakeven: measure which KV-cache quantization and which speculative drafter pay, and prove it."""

__version__ = "0.1.0"
