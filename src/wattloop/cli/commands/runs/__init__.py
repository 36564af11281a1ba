"""`wattloop runs`: list, show, compare, export and import measured runs."""
