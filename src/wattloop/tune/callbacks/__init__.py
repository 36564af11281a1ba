"""Callbacks that report the epochs of a framework's training to a trial, one module per framework.

Each reports the metrics of every epoch under the framework's own names, and its steps, to the trial
it is given, or to `current_trial()`: the same script runs in a search and by itself.
"""
