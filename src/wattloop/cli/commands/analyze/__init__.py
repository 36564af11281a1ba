"""`wattloop analyze`: statistics over a search, a sweep or a CSV file."""
