"""llama.cpp through its C API: continuous batching as its server does it, one stream of KV memory a sequence.

A prefix that all prompts share is computed once and copied, which is the best its API offers.
"""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass, field
from typing import Any

from benchmarks.peers.workers.worker import serve

#: Tokens computed in one call at most.
BATCH_TOKENS = 2048
#: A context holds this many tokens a sequence, or a multiple of it.
CONTEXT_STEP = 256
#: A shared prefix shorter than this is not worth a copy.
SHORTEST_SHARED_PREFIX = 32


@dataclass
class _Sequence:
    """A request that holds KV stream `slot`; `pending` are the tokens that are not computed yet."""

    slot: int
    position: int
    pending: list[int]
    output: list[int] = field(default_factory=list)


class LlamaCppRunner:
    def load(
        self, model: str, max_num_seqs: int, max_model_len: int, num_kv_tokens: int, flash_attention: bool
    ) -> dict[str, Any]:
        """A context is made for each shape of work, so `max_model_len` and `num_kv_tokens` bound nothing here."""
        import llama_cpp.llama_cpp as api

        self._api, self._max_num_seqs, self._flash_attention = api, max_num_seqs, flash_attention
        self._silence = api.llama_log_callback(lambda level, text, data: None)
        api.llama_log_set(self._silence, None)
        api.llama_backend_init()
        self._model = api.llama_model_load_from_file(model.encode(), api.llama_model_default_params())
        if not self._model:
            raise RuntimeError(f"llama.cpp cannot load {model}")
        self._vocab_size = api.llama_vocab_n_tokens(api.llama_model_get_vocab(self._model))
        self._context, self._shape = None, (0, 0)
        self._batch = api.llama_batch_init(BATCH_TOKENS, 0, 1)
        import llama_cpp

        return {
            "version": llama_cpp.__version__,
            "weight_bytes": api.llama_model_size(self._model),
            "instruction set": api.llama_print_system_info().decode().strip(),
        }

    def run(self, prompts: list[list[int]], new_tokens: int) -> list[list[int]]:
        num_seqs = min(len(prompts), self._max_num_seqs)
        shared = shared_prefix(prompts)
        self._make_context(num_seqs + (1 if shared else 0), max(map(len, prompts)) + new_tokens)
        if shared:
            self._compute([_Sequence(num_seqs, 0, list(shared))])
        finished: dict[int, list[int]] = {}
        waiting = list(enumerate(prompts))
        free = list(range(num_seqs))
        running: dict[int, _Sequence] = {}
        while waiting or running:
            while waiting and free:
                number, prompt = waiting.pop(0)
                running[number] = self._admit(free.pop(), prompt, num_seqs, len(shared))
            self._compute(list(running.values()))
            for number in [each for each, sequence in running.items() if len(sequence.output) == new_tokens]:
                sequence = running.pop(number)
                finished[number] = sequence.output
                self._api.llama_memory_seq_rm(self._memory, sequence.slot, -1, -1)
                free.append(sequence.slot)
        return [finished[number] for number in range(len(prompts))]

    def _make_context(self, num_seqs: int, tokens_per_seq: int) -> None:
        """The context of the last run if it has this shape, emptied; else a new one."""
        api = self._api
        shape = (num_seqs, -(-tokens_per_seq // CONTEXT_STEP) * CONTEXT_STEP)
        if self._context is None or shape != self._shape:
            if self._context is not None:
                api.llama_free(self._context)
            self._context = api.llama_init_from_model(self._model, self._parameters(*shape))
            if not self._context:
                raise RuntimeError(f"llama.cpp cannot make a context of {shape}")
            self._memory = api.llama_get_memory(self._context)
            self._shape = shape
        api.llama_memory_clear(self._memory, False)

    def _parameters(self, num_seqs: int, tokens_per_seq: int) -> Any:
        api = self._api
        parameters = api.llama_context_default_params()
        parameters.n_ctx = num_seqs * tokens_per_seq
        parameters.n_seq_max = num_seqs
        parameters.n_batch = BATCH_TOKENS
        parameters.n_threads = parameters.n_threads_batch = len(os.sched_getaffinity(0))
        on, off = api.LLAMA_FLASH_ATTN_TYPE_ENABLED, api.LLAMA_FLASH_ATTN_TYPE_DISABLED
        parameters.flash_attn_type = on if self._flash_attention else off
        parameters.kv_unified = False
        return parameters

    def _admit(self, slot: int, prompt: list[int], prefix_slot: int, num_shared: int) -> _Sequence:
        if num_shared:
            self._api.llama_memory_seq_cp(self._memory, prefix_slot, slot, -1, -1)
        return _Sequence(slot, num_shared, prompt[num_shared:])

    def _compute(self, sequences: list[_Sequence]) -> None:
        """One step: what fits of every sequence's pending tokens, then a token for each that has none left."""
        batch, ending = self._batch, []
        batch.n_tokens = 0
        for sequence in sorted(sequences, key=lambda each: len(each.pending)):
            taken = sequence.pending[: BATCH_TOKENS - batch.n_tokens]
            sequence.pending = sequence.pending[len(taken) :]
            for token in taken:
                self._put(token, sequence)
            if taken and not sequence.pending:
                batch.logits[batch.n_tokens - 1] = True
                ending.append((batch.n_tokens - 1, sequence))
        status = self._api.llama_decode(self._context, batch)
        if status:
            raise RuntimeError(f"llama_decode failed with {status}")
        for row, sequence in ending:
            token = self._likeliest(row)
            sequence.output.append(token)
            sequence.pending = [token]

    def _put(self, token: int, sequence: _Sequence) -> None:
        batch, row = self._batch, self._batch.n_tokens
        batch.token[row] = token
        batch.pos[row] = sequence.position
        batch.n_seq_id[row] = 1
        batch.seq_id[row][0] = sequence.slot
        batch.logits[row] = False
        batch.n_tokens += 1
        sequence.position += 1

    def _likeliest(self, row: int) -> int:
        import numpy as np

        logits = self._api.llama_get_logits_ith(self._context, row)
        return int(
            np.ctypeslib.as_array(ctypes.cast(logits, ctypes.POINTER(ctypes.c_float)), (self._vocab_size,)).argmax()
        )


def shared_prefix(prompts: list[list[int]]) -> list[int]:
    """What all of several prompts begin with, less than any whole prompt; empty where it is too short to matter."""
    if len(prompts) < 2:
        return []
    first = prompts[0]
    longest = min(map(len, prompts)) - 1
    length = next((at for at in range(longest) if any(each[at] != first[at] for each in prompts)), longest)
    return first[:length] if length >= SHORTEST_SHARED_PREFIX else []


if __name__ == "__main__":
    serve(LlamaCppRunner())
