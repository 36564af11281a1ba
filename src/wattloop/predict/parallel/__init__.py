"""Training over many GPUs: layouts, their communication, memory and time, and a search."""
