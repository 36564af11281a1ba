"""Contract tests that ship with the package: meters, levers, stores, strategies and policies."""
