"""The native executor: a model recorded once, replayed for each step by C++ kernels on a thread team of its own.

    model.forward --RecordingOps--> calls --fuse, lower--> instructions --ProgramBuilder--> program in C++
                   recorder.py            fusion.py, lowering.py        program.py          native/program/

Owns: what is recorded and joined (`lower`), which values share memory (`buffers.py`), weights in the kernels' layout
(`PackedModel`), steps (`NativeExecutor`), what all of it occupies (`plan_native`) and how near it is to the machine's
limits (`roofline.py`); calling single kernels with checked arguments; which kernel units this processor can run.
Does not own: the kernels and the step program (`native/`), what a model computes (`models`), the reference's numbers
(`reference`), sampling's semantics (`engine`).

How the promise of equal bits is kept: fusing decides only where values rest between instructions, never what is
computed; every order of additions is fixed in the kernels (`native/kernels/`). `tests/ops/test_native_exactness.py`
holds it.
"""
