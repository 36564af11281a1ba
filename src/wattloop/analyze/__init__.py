"""Statistics over tables of runs."""
