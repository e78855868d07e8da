"""How a model is stored: readers, writers and what each format can hold (`formats`); fetching models.

Owns: file formats (safetensors, compressed-tensors, GPTQ, AWQ, BitNet, FP8, GGUF) read lazily as a `Checkpoint`;
writing one whole or not at all, checked by an independent reader; what a checkpoint holds and whether it is sane
(`inventory`, `sanity`); `octavo pull`.
Does not own: what a tensor's name means to a model (`models`), how its codes were chosen (`quantize`).
"""
