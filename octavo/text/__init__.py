"""Tokens and text.

Owns: tokenizers (Hugging Face directories, GGUF metadata both ways), exact token bytes, chat templates and the messages
that go into them, control-token safety, incremental detokenization, stop strings. Built on `tokenizers` and
sandboxed jinja2.
Does not own: reading GGUF files (weights), request validation beyond messages (serve), when a sequence ends (engine).
"""
