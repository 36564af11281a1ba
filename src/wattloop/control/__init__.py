"""Levers: what can be set to make a device use less, and that it is put back to what it was."""
