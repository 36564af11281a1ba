"""One file per source of energy readings, and one card each in `docs/meters/`."""
