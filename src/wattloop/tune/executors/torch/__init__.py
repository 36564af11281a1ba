"""PyTorch trainings: batches on the device, and an executor that runs segments."""
