"""Decoding and scores; knows nothing of how a model was trained."""
