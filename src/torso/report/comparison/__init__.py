"""Strategies side by side, read from the directory of a `torso compare`: tables, plots, findings and one page."""
