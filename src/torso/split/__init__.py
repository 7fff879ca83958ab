"""The split: what crosses the wire, and its two ends."""
