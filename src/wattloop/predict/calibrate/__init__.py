"""Calibration: measure a GPU's kernels and small models, and fit its constants."""
