"""`wattloop run`: measure any program."""
