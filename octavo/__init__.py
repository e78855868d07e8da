"""Octavo: quantize language models with a measured loss and serve them from paged, prefix-shared memory."""

__version__ = "0.1.0"
