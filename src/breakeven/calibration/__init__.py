"""Acceptance of drafters on calibration prompts, before anything is timed."""
