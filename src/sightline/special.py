"""The special tokens that every vocabulary has. All others (mask, separator, class, speaker roles) are looked up by
name in the tokenizer."""

PAD, START, END, UNKNOWN = 0, 1, 2, 3
