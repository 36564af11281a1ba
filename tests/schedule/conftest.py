"""Property tests judge what is computed, not how fast: this machine may be busy."""

from hypothesis import settings

settings.register_profile("schedule", deadline=None, database=None, max_examples=50)
settings.load_profile("schedule")
