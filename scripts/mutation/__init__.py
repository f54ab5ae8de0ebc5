"""Mutation testing of the decisions that must never be lost; `scripts/mutate.py` runs it."""
