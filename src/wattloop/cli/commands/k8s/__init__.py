"""`wattloop k8s`: energy of pods, and policies that order Jobs, on Kubernetes."""
