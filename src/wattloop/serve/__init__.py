"""The dashboard: server-rendered pages and their data as JSON, in one process."""
