"""Figures: Altair definitions, rendered to one self-contained HTML page, SVG and PNG (ADR 0006)."""
