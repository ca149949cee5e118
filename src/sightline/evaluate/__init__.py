"""How good it is, in numbers others can compare with."""
