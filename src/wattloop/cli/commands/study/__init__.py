"""`wattloop study`: the guided six steps."""
