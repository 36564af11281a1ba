"""One rule per file: facts of a run -> an advice, or None when there is nothing to say.

A rule names its thresholds with the reason for each. They were set on generated runs other than
those that the benchmark judges (docs/benchmarks/advise.md).
"""
