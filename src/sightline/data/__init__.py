"""Training text: files, the built-in corpus, tokenised stores and batches."""
