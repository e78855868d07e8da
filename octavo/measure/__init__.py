"""Arithmetic after the fact."""
