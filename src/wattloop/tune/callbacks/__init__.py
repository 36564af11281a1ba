"""Trainings of frameworks as trials: one file each, loaded only where that framework is used.

Each reports the metrics of every epoch under the framework's own names, and its steps, to the trial
it is given, or to `current_trial()`: the same script runs in a search and by itself.
"""
