"""Serve models over HTTP."""
