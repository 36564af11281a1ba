"""Figures: Vega-Lite definitions, rendered to one offline HTML page, SVG and PNG (ADR 0006)."""
