"""Text processing: tokenizers, splitting, streaming, dialogues, words and shortlists."""
