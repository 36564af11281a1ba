"""The verbs: one module each, or a folder with command.py and view.py."""
