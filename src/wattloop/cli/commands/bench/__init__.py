"""`wattloop bench`: time and energy of six kernels."""
