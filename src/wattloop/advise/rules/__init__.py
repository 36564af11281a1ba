"""Advice rules: facts of a run -> an advice, or None.

A rule names its thresholds with the reason for each. They were set on generated runs other than
those that the benchmark judges (docs/benchmarks/advise.md). Those of rules on phases were reasoned,
not fitted.
"""
