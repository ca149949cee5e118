"""Evaluation: scores of translations, comparison of systems, alignment error rate."""
