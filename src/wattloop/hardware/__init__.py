"""Facts about machines: where their files are, and what their parts draw."""
