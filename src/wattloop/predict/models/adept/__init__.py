"""ADEPT, the analytical model of thesis 4.3, as far as its text determines it (ADR 0028)."""

from wattloop.predict.models.adept.model import Adept

__all__ = ["Adept"]
