"""Tracing of a model on fake tensors."""
