"""How a model is stored."""
