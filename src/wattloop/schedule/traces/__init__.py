"""Traces of real clusters: CSV files of several formats, read by column mappings."""
