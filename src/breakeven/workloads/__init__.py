"""Prompts to measure on, and prose to calibrate on; all of them `datasets` datasets underneath."""

from breakeven.workloads.calibration_texts import calibration_texts
from breakeven.workloads.loading import load_prompts
from breakeven.workloads.prompts import CATEGORIES, Prompt, check_context, encode_prompt, to_prompts

__all__ = ["CATEGORIES", "Prompt", "calibration_texts", "check_context", "encode_prompt", "load_prompts", "to_prompts"]
