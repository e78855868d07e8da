"""The Python side of the C++ kernels in `native/`. No torch.

Owns: calling a kernel with checked arguments, knowing which kernel units this processor can run.
Does not own: the kernels (`native/`), deciding when a layer uses one (executors).
"""
