"""Corpora: the built-in one, files, and batches of them."""
