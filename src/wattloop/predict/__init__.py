"""Predict: what a training step will cost in time, power and energy, before it runs.

workload/    a torch model -> the operations of one step, traced without running it
placement    where it is to run: which GPU, how many, cap, clock, accumulation, data rate
models/      roofline, adept (the thesis), kernels (ours, the default): fit, predict, explain
prediction   what every model answers: time, power, energy, interval, regime, terms
calibrate/   measure a GPU in minutes and fit its constants
"""
