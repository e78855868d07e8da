"""The shared vocabulary: requests, sampling parameters, steps, outputs, errors, units.

Owns: plain data that every room speaks. No torch, no I/O.
Does not own: any behaviour that needs a model, a tokenizer or memory.
"""
