"""HTTP: the OpenAI shapes over one `AsyncEngine`.

Owns: reading and refusing bodies, the responses and event streams, error objects, the key check, Prometheus
metrics, the server's start and drain, what happens when a client leaves.
Does not own: how tokens are made (`engine`), templates and stop strings (`text`), how quality is measured
(`measure`); it shows what they return.
"""
