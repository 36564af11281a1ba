"""Reports and figures: HTML and PDF reports, charts, energy cards."""
