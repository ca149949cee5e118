"""Backends: the libraries that compute a search."""
