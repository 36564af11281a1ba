"""`wattloop simulate`: policies on a simulated GPU cluster."""
