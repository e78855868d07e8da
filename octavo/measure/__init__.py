"""Arithmetic after the fact: perplexity, divergence from another model, agreement, intervals, and their protocol.

Owns: evaluation text and windows, scores per token, `QualityReport`.
Does not own: how a model computes (`ops`, `models`), how it was made (`quantize`).
"""
