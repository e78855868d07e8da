"""Number grids: what a weight may become, and how its codes are stored.

Owns: schemes, rounding to a grid, encode/decode, bit packing, packed tensors, ggml's block types (`ggml`).
Does not own: choosing codes well (`quantize`), file formats (`weights`).
"""
