"""vLLM's offline `LLM`; the engine runs in this process (see the peer's variables)."""

from __future__ import annotations

from typing import Any

from benchmarks.peers.workers.worker import serve


class VllmRunner:
    def load(
        self, model: str, max_num_seqs: int, max_model_len: int, num_kv_tokens: int, dtype: str, enforce_eager: bool
    ) -> dict[str, Any]:
        import torch
        import vllm

        self._llm = vllm.LLM(
            model,
            dtype=dtype,
            max_num_seqs=max_num_seqs,
            max_model_len=max_model_len,
            enforce_eager=enforce_eager,
            num_gpu_blocks_override=-(-num_kv_tokens // 128),
            enable_prefix_caching=True,
            disable_log_stats=True,
        )
        return {
            "version": vllm.__version__,
            "torch": torch.__version__,
            "instruction set": torch.backends.cpu.get_cpu_capability(),
        }

    def run(self, prompts: list[list[int]], new_tokens: int) -> list[list[int]]:
        from vllm import SamplingParams

        sampling = SamplingParams(temperature=0.0, max_tokens=new_tokens, ignore_eos=True)
        inputs = [{"prompt_token_ids": prompt} for prompt in prompts]
        results = self._llm.generate(inputs, sampling, use_tqdm=False)
        return [list(result.outputs[0].token_ids) for result in results]


if __name__ == "__main__":
    serve(VllmRunner())
