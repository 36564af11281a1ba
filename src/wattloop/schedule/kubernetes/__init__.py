"""Kubernetes driver: run Wattloop's scheduling policies on Jobs and Kueue's Workloads."""
