"""The Transformer, its masks and its cache."""
