"""Raw text to ids, and ids to raw text."""
