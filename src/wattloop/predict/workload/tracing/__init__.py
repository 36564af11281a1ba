"""How a model is run on fake tensors so that its operations can be written down."""
