"""Many nodes: what each job used on each of them, and how that gets to one place."""
