"""Contract tests that every meter and store must pass, and the builders they use."""
