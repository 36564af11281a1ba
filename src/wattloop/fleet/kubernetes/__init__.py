"""Kubernetes: pods of a node and their devices, through the API server, kubelet and cgroups."""
