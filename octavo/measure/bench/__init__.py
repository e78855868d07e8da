"""Speed after the fact: latency, throughput, shared prefixes, and a server under arrivals nobody slows down.

Owns: prompts that no cache knows, arrival times and traces, the load client, percentiles, goodput.
Does not own: the engine (`octavo.engine`), the server (`octavo.serve`), comparison with peers (`benchmarks/`).
"""
