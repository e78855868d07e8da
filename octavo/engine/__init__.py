"""How requests become tokens."""
