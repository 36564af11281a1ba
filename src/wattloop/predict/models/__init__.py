"""Models of time and power: `roofline`, `adept` and `kernels`, one interface."""
