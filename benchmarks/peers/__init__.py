"""Octavo beside its peers: the same work, on the same machine, in one interleaved run.

Owns: the peers' own virtual environments, their models, the workloads of the comparison, the ratio table.
Does not own: what `octavo bench` measures (`octavo.measure.bench`). This folder is no part of the package.

    python -m benchmarks.peers setup [NAME...]     # environments and models; does nothing that is already done
    python -m benchmarks.peers list                # who is there, and why the others are not
    python -m benchmarks.peers run                 # rounds, medians, ratios
"""
