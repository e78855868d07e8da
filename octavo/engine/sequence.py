"""One growing answer of a request."""

from __future__ import annotations

from dataclasses import dataclass, field

from octavo.core.request import Request


@dataclass(slots=True, eq=False)
class Sequence:
    """The prompt and what has been generated after it, and how far it is computed.

    `tokens` only grows. `[0, num_computed_tokens)` are in the KV cache, the rest is to be computed: a whole prompt at
    first, one token in the middle of an answer, everything again after a preemption. There are no other states.

    `index` says which of the request's `sampling.n` answers this is. `num_cached_tokens` is what the prefix cache
    gave at the first admission, at most `num_prompt_tokens - 1`; forked sequences take their parent's. `scores_prompt`:
    the request wants log-probabilities of its prompt. Seconds are monotonic.
    """

    sequence_id: int
    request: Request
    index: int = 0
    tokens: list[int] = field(default_factory=list)
    num_prompt_tokens: int = 0
    num_computed_tokens: int = 0
    num_cached_tokens: int = 0
    num_preemptions: int = 0
    scores_prompt: bool = False
    first_scheduled_seconds: float | None = None
    first_token_seconds: float | None = None
    last_token_seconds: float | None = None

    @classmethod
    def of(cls, sequence_id: int, request: Request, index: int = 0) -> Sequence:
        """The request's prompt, nothing computed."""
        prompt, scores_prompt = request.prompt_token_ids, request.sampling.prompt_logprobs is not None
        return cls(sequence_id, request, index, list(prompt), len(prompt), scores_prompt=scores_prompt)

    @property
    def num_tokens(self) -> int:
        return len(self.tokens)

    @property
    def num_output_tokens(self) -> int:
        return len(self.tokens) - self.num_prompt_tokens

    @property
    def output_token_ids(self) -> list[int]:
        return self.tokens[self.num_prompt_tokens :]

    @property
    def num_uncomputed_tokens(self) -> int:
        return len(self.tokens) - self.num_computed_tokens

    @property
    def wants_prompt_rows(self) -> bool:
        """Prompt log-probabilities need every row of the prompt, until it has been computed once.

        A preemption in mid-prompt starts again at position 0: a row may come twice, with the same bits.
        """
        return self.scores_prompt and len(self.tokens) == self.num_prompt_tokens

    @property
    def order(self) -> tuple[int, float, int]:
        """Smaller goes first: priority, then arrival, then number."""
        return (self.request.priority, self.request.arrival_seconds, self.sequence_id)

    def append_token(self, token: int, seconds: float) -> None:
        """The sampler's choice at monotonic time `seconds`."""
        self.tokens.append(token)
        self.last_token_seconds = seconds
        if self.first_token_seconds is None:
            self.first_token_seconds = seconds
