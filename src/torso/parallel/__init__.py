"""Processes that work as one: groups, the launcher, the arithmetic they must share."""
