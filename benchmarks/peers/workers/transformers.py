"""transformers: `generate` in static batches of at most `max_num_seqs`."""

from __future__ import annotations

from typing import Any

from benchmarks.peers.workers.worker import serve


class TransformersRunner:
    def load(self, model: str, max_num_seqs: int, dtype: str, **_: Any) -> dict[str, Any]:
        import torch
        import transformers

        self._batch_size = max_num_seqs
        self._model = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=getattr(torch, dtype)).eval()
        self._model.generation_config.eos_token_id = None  # go on to the last token asked for
        return {
            "version": transformers.__version__,
            "torch": torch.__version__,
            "threads": torch.get_num_threads(),
            "instruction set": torch.backends.cpu.get_cpu_capability(),
        }

    def run(self, prompts: list[list[int]], new_tokens: int) -> list[list[int]]:
        batches = [prompts[start : start + self._batch_size] for start in range(0, len(prompts), self._batch_size)]
        return [output for batch in batches for output in self._continue(batch, new_tokens)]

    def _continue(self, prompts: list[list[int]], new_tokens: int) -> list[list[int]]:
        """Prompts of one batch are equally long in every workload, so none is padded."""
        import torch

        ids = torch.tensor(prompts)
        with torch.inference_mode():
            rows = self._model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                max_new_tokens=new_tokens,
                pad_token_id=0,
            )
        return [row[ids.shape[1] :].tolist() for row in rows]


if __name__ == "__main__":
    serve(TransformersRunner())
