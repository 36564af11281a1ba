"""Operation families of the suite: the cases to measure and the calls that run them."""
