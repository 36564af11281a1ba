"""Meters: one module per source of energy readings, and one card each in `docs/meters/`."""
