"""The glass: what a model computes, step by step, and what it would compute if a part were different."""
