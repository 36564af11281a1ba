"""The dashboard: pages made on the server, their data as JSON, one process, no other host."""
