"""Zoo of small models of many kinds, built by name with random weights.

`subject(name)` needs torch, and transformers for the models marked so; nothing else. The names are
not those of the benchmark's twelve models.
"""

from wattloop.predict.calibrate.zoo.subject import NAMES, Subject, subject

__all__ = ["NAMES", "Subject", "subject"]
