"""Bootstrap intervals for means of per-token numbers, resampling stretches of text rather than single tokens."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

#: Consecutive tokens are drawn together: neighbours are not independent.
BLOCK_TOKENS = 64
_NUM_RESAMPLES = 2000
_CONFIDENCE = 0.95


def mean_interval(values: npt.NDArray[np.float64], seed: int = 0) -> tuple[float, float]:
    """95 % percentile interval of the mean of `values` `[tokens]`, from blocks of `BLOCK_TOKENS` drawn with
    replacement. The same seed and length draw the same blocks, so intervals of different numbers are paired."""
    num_blocks = -(-len(values) // BLOCK_TOKENS)
    starts = np.arange(num_blocks) * BLOCK_TOKENS
    sums = np.add.reduceat(values, starts)
    counts = np.minimum(len(values) - starts, BLOCK_TOKENS)
    drawn = np.random.default_rng(seed).integers(0, num_blocks, size=(_NUM_RESAMPLES, num_blocks))
    means = sums[drawn].sum(1) / counts[drawn].sum(1)
    tail = 50 * (1 - _CONFIDENCE)
    low, high = np.percentile(means, [tail, 100 - tail])
    return float(low), float(high)
