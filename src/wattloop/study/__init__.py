"""The guided six steps, from a need to a proven saving (thesis chapter 6).

1. objective: a need as figures with goals
2. baseline: the system as it is, and its symptoms
3. characterize: what levers do, from sweeps
4. simulate: candidates on a twin that was checked against the baseline
5. decide: the decision tree, and what the figures say
6. validate: the figures again, each goal met or not
"""
