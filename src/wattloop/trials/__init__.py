"""The one runner that sweeps, the cap finder and searches share."""
