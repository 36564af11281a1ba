"""`wattloop tune`: settings that reach the same quality for less energy."""
