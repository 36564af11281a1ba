"""Energy regression tests: an execution against a limit or baseline, with noise."""
