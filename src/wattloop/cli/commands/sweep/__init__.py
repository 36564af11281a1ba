"""`wattloop sweep`: the best setting of caps, clocks and GPU counts."""
