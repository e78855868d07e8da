"""Several checkpoints beside one another: measured from the files by one protocol, each in a process of its own.

Owns: `CheckpointEntry`, the workers and the rounds that measure, Pareto fronts, the parts of a file.
Does not own: what a quality figure is (`octavo.measure.evaluate`), how entries are shown (`octavo.measure.page`).
"""
