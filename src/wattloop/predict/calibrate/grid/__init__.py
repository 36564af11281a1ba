"""What the suite measures: lists of cases, one module per family."""
