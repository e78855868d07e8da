"""Admission: what is refused before any work, and why.

The one rule of length, for every door: a prompt may hold at most `max_model_len - 1` tokens, and prompt plus
`max_tokens` may not exceed `max_model_len`; what does not fit is refused, never cut. Without `max_tokens` a sequence
may grow to `max_model_len` tokens in all.
"""

from __future__ import annotations

from octavo.core.errors import InvalidField
from octavo.core.request import Request


def check_request(request: Request, vocab_size: int, max_model_len: int) -> int:
    """The number of tokens the request may generate per sequence. Raises `InvalidField` on what cannot be honoured."""
    _check_tokens(request.prompt_token_ids, vocab_size)
    request.sampling.check_vocabulary(vocab_size)
    return _check_length(request, max_model_len)


def _check_tokens(token_ids: list[int], vocab_size: int) -> None:
    if not token_ids:
        raise InvalidField("prompt", token_ids, "a prompt must have at least one token; this one has none")
    for token in token_ids:
        if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < vocab_size:
            raise InvalidField("prompt", token, f"token ids are whole numbers from 0 to {vocab_size - 1}")


def _check_length(request: Request, max_model_len: int) -> int:
    num_prompt, params = len(request.prompt_token_ids), request.sampling
    wanted = params.max_tokens
    limit = f"the limit is max_model_len = {max_model_len} tokens for prompt and answer together"
    if wanted == 0:
        if params.prompt_logprobs is None:
            raise InvalidField("max_tokens", 0, "ask for at least 1 token; 0 needs prompt_logprobs (scoring a prompt)")
        if params.n > 1:
            raise InvalidField("n", params.n, "must be 1 when max_tokens is 0: there is no answer to repeat")
        if num_prompt > max_model_len:
            raise InvalidField("prompt", f"{num_prompt} tokens and max_tokens 0", limit)
        return 0
    if num_prompt > max_model_len - 1:
        given = f"{num_prompt} tokens and max_tokens {'unset' if wanted is None else wanted}"
        raise InvalidField("prompt", given, f"{limit}, so a prompt may have at most {max_model_len - 1}")
    if wanted is not None and num_prompt + wanted > max_model_len:
        given = f"{wanted} with a prompt of {num_prompt} tokens"
        expected = f"{limit}; at most {max_model_len - num_prompt} fit here (unset means: up to the limit)"
        raise InvalidField("max_tokens", given, expected)
    room = max_model_len - num_prompt if wanted is None else wanted
    if params.min_tokens > room:
        raise InvalidField("min_tokens", params.min_tokens, f"only {room} tokens fit after this prompt; {limit}")
    return room
