"""The race strategy: least energy to a target quality."""
