"""`wattloop watch`: power and energy live."""
