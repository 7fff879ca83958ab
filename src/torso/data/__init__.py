"""Tokenizers, data sets and canonical micro-batches; knows nothing of the model."""
