"""Who is measured: Octavo and transformers on the same weights, behind one small interface."""

from __future__ import annotations

import shutil
import tempfile
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any


class Contender(ABC):
    """Greedy continuation of token-id prompts, no early stop."""

    name: str

    @abstractmethod
    def generate(self, prompts: list[list[int]], num_new_tokens: int) -> list[list[int]]:
        """New token ids for each prompt, all prompts given at once."""

    def seconds(self, prompts: list[list[int]], num_new_tokens: int) -> float:
        started = time.perf_counter()
        outputs = self.generate(prompts, num_new_tokens)
        elapsed = time.perf_counter() - started
        assert all(len(output) == num_new_tokens for output in outputs)
        return elapsed


class Octavo(Contender):
    """The offline `LLM`; the prefix cache is off so that every round does the same work."""

    def __init__(self, name: str, model: str | Path, max_model_len: int = 1024) -> None:
        from octavo import LLM

        self.name = name
        self._llm = LLM(str(model), max_model_len=max_model_len, prefix_caching=False)

    def generate(self, prompts: list[list[int]], num_new_tokens: int) -> list[list[int]]:
        from octavo import SamplingParams

        sampling = SamplingParams(temperature=0.0, max_tokens=num_new_tokens, ignore_eos=True)
        results = self._llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], sampling)
        return [result.outputs[0].token_ids for result in results]


class Transformers(Contender):
    """`AutoModelForCausalLM.generate` on the same float32 weights, written once as a plain checkpoint."""

    name = "transformers float32"

    def __init__(self, model: str) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="octavo-bench-"))
        try:
            self._model = self._load(model)
        finally:
            shutil.rmtree(self._directory)

    def _load(self, model: str) -> Any:
        import json

        from safetensors.torch import save_file
        from transformers import AutoModelForCausalLM

        from octavo.models.catalog import resolve
        from octavo.models.load import load_model

        checkpoint = load_model(resolve(model)).checkpoint
        tensors = {name: checkpoint.get(name).clone() for name in checkpoint.names()}
        save_file(tensors, self._directory / "model.safetensors", metadata={"format": "pt"})
        (self._directory / "config.json").write_text(json.dumps(checkpoint.config))
        return AutoModelForCausalLM.from_pretrained(self._directory).float().eval()

    def generate(self, prompts: list[list[int]], num_new_tokens: int) -> list[list[int]]:
        import torch

        ids = torch.tensor(prompts)
        with torch.inference_mode():
            output = self._model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                max_new_tokens=num_new_tokens,
                min_new_tokens=num_new_tokens,
                pad_token_id=0,
            )
        return [row[ids.shape[1] :].tolist() for row in output]
