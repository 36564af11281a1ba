"""Sources of models: resolve a name on a command line to a module with inputs and a loss."""
