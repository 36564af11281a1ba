"""Driver of a real cluster: rounds in which a policy places the jobs of a scheduler's queue."""
