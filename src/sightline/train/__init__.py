"""Training: a flat loop of named functions."""
