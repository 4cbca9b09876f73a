"""Demonstrations that people run with make; they are tested like everything else."""
