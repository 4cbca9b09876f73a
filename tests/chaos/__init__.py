"""Faults at random, by seed, in a real server with real clients: ``make chaos``."""
