"""`wattloop predict`: time and energy of a training before it runs."""
