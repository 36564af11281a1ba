"""Training loops: one step and epoch hook, one file per framework.

Nothing here imports a framework before it is used.
"""
