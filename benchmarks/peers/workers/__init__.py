"""What runs inside a peer's own environment; nothing here imports Octavo but its own worker.

A worker is `python -m benchmarks.peers.workers.<peer>`. It reads one JSON object a line and answers with one:

    {"do": "load", "options": {...}}                         -> {"facts": {...}}
    {"do": "run", "prompts": [[ids]], "new_tokens": n}       -> {"seconds": s, "outputs": [[ids]]}
    {"do": "memory"}                                         -> {"peak_rss_bytes": b}
    {"do": "quit"}                                           -> (the process ends)

An error is answered with {"error": "..."}.
"""
