"""Policies x seeds on a scenario: carried out over processes, kept, compared.

- `campaign`  what is to be simulated: cells, each a policy on a seed
- `running`   carrying it out: resumable, nothing computed twice
- `summary`   what it says: means, deviations, paired differences
- `whatif`    the same jobs in two worlds

Nothing is imported here: a worker simulates and needs no database.
"""
