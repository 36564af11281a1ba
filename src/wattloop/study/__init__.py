"""The guided six steps, from a need to a proven saving (thesis chapter 6).

1. objective: a need as figures with goals (`spec`, `goals`)
2. baseline: the system as it is, and its symptoms (`baseline`, `symptoms`)
3. characterize: what levers do, from sweeps (`characterize`)
4. simulate: candidates on a twin that was checked against the baseline (`candidates`, `twin`)
5. decide: the decision tree, and what the figures say (`decision`)
6. validate: the figures again, each goal met or not (`validation`)
"""
