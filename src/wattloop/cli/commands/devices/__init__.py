"""`wattloop devices`: meters and levers of this machine."""
