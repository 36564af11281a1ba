"""The SM2 strategy: Spend More to Save More (document 003)."""
