"""Adapters to the engines of others: Ray spreads trainings, Optuna suggests and draws them."""
