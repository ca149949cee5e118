"""Bulk jobs: text files of any length are translated, aligned or learned from. They can be interrupted and resumed."""
