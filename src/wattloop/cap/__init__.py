"""The cap finder: the best power cap with few probes, before or during a training."""
