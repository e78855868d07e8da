"""Quantizers side by side: the same source, the same calibration tokens, one protocol for what they lose.

    python -m benchmarks.quantization setup --rows llmcompressor-gptq-4
    python -m benchmarks.quantization run --rows rtn-4 gptq-4 llmcompressor-gptq-4

Owns: rows of the comparison, peers in environments of their own, time and memory of each run, one evaluation.
Does not own: peers that serve (`benchmarks.peers`, whose environments it shares).
"""
