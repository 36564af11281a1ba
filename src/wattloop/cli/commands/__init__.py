"""Commands of the CLI: one module per verb, or a folder with command.py and view.py."""
