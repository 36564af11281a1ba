"""Energy as a test: what an execution used, against a limit or a baseline, noise and all."""
