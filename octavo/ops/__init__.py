"""The op set, and who computes it.

Owns: the ops a model description may call, their weights as they live in memory, the executors
(`reference` in torch now), the storage of keys and values.
Does not own: which ops a model calls (`models`), which sequences run (`engine`), block bookkeeping (`kv`).
"""
