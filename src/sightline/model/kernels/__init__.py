"""Faster computations of the same operations, chosen by device and mode. Not needed to understand the model."""
