"""Journals that other machines send: uploads, incoming files, validation."""
