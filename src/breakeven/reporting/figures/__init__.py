"""Figures: one builder a figure, each from `Results` to a `Plot` or to None where there is nothing to draw."""
