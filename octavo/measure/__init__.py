"""Arithmetic after the fact: perplexity, divergence from another model, agreement, speed, and their protocols.

Owns: evaluation text and windows, scores per token, `QualityReport`; speed and load (`bench/`); checkpoints side by
side (`compare/`) and pages that show them (`page/`).
Does not own: how a model computes (`ops`, `models`), how it was made (`quantize`).
"""
