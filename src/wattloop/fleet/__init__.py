"""Many nodes: the agent on each node, delivery of its runs, and the server's tokens."""
