"""How a model is stored: readers, the compressed-tensors writer, and fetching models.

Owns: file formats (safetensors, GGUF, compressed-tensors) read lazily as a `Checkpoint`, writing a quantized
checkpoint whole or not at all, checking it with an independent reader, and `octavo pull`.
Does not own: what a tensor's name means to a model (`models`), how its codes were chosen (`quantize`).
"""
