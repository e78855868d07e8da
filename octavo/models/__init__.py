"""What a model computes.

Owns: reading a config (`ModelSpec`; one file for each family), the decoder's forward pass over the op set, loading
weights into it, GGUF seen as a Hugging Face checkpoint and written from one, stacked experts seen one by one, the
catalog of names.
Does not own: how an op is computed (`ops`), file formats (`weights`), tokenizers (`text`).

Nowhere else in Octavo is a model named.
"""
