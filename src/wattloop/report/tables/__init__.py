"""What is stored, as tables for `analyze`: one row per trial or configuration."""
