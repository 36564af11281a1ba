"""Trainings in PyTorch: data that stays on the device, and an executor that runs segments."""
