"""Models of time and power with one interface: `roofline`, `adept` and `kernels`."""
