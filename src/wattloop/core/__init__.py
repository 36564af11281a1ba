"""Foundation: units, clock, errors, records, results, provenance. Standard library only."""
