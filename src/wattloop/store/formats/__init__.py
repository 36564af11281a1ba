"""File formats of exports and imports, one module each."""
