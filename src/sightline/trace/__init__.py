"""Traces of a model's computation, and edits of its parts."""
