"""Translation for others: an API over HTTP."""
