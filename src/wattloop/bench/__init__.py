"""The kernel benchmark: time and energy of six kernels across frameworks (thesis, 3.4)."""
