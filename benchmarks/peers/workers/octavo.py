"""Octavo through its offline front door, `octavo.LLM`, with its defaults."""

from __future__ import annotations

from typing import Any

from benchmarks.peers.workers.worker import serve


class OctavoRunner:
    def load(
        self, model: str, max_num_seqs: int, max_model_len: int, num_kv_tokens: int, **settings: Any
    ) -> dict[str, Any]:
        """`num_kv_tokens` is what the peers without a default are given; Octavo plans its own KV memory."""
        import octavo

        self._llm = octavo.LLM(model, max_num_seqs=max_num_seqs, max_model_len=max_model_len, **settings)
        plan = self._llm.memory_plan
        return {
            "version": octavo.__version__,
            "executor": type(self._llm.engine.executor).__name__,
            "weight_bytes": plan.weight_bytes,
            "num_kv_tokens": plan.num_kv_tokens,
        }

    def run(self, prompts: list[list[int]], new_tokens: int) -> list[list[int]]:
        from octavo import SamplingParams

        sampling = SamplingParams(temperature=0.0, max_tokens=new_tokens, ignore_eos=True)
        results = self._llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], sampling)
        return [result.outputs[0].token_ids for result in results]


if __name__ == "__main__":
    serve(OctavoRunner())
