"""What a model computes."""
