"""Proves that a schedule is correct before anything runs it: bounds, contributions, races, deadlock."""

from .proof import Proof, Verifier, verify

__all__ = ["Proof", "Verifier", "verify"]
