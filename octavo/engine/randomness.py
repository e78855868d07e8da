"""Counter-based randomness: one uniform number for each (seed, sequence index, position), whatever ran before.

A draw is a pure function of its key, so a preempted, batched or restarted sequence draws the same numbers.
The mixing function is SplitMix64 (Steele, Lea, Flood 2014, "Fast splittable pseudorandom number generators").
"""

from __future__ import annotations

import secrets

_MASK = 2**64 - 1
_GOLDEN_GAMMA = 0x9E3779B97F4A7C15


def draw_seed() -> int:
    """A fresh seed from the operating system, for a request that named none."""
    return secrets.randbits(63)


def uniform(seed: int, sequence_index: int, position: int) -> float:
    """A number in [0, 1) with 53 random bits, keyed by all three arguments."""
    state = _mix(seed & _MASK)
    state = _mix(state ^ (sequence_index * _GOLDEN_GAMMA & _MASK))
    state = _mix(state ^ (position * _GOLDEN_GAMMA & _MASK))
    return (state >> 11) * 2.0**-53


def _mix(value: int) -> int:
    value = (value + _GOLDEN_GAMMA) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)
