"""OpenVINO GenAI's continuous batching pipeline, paged and prefix-cached, on a GGUF file or an IR directory."""

from __future__ import annotations

from typing import Any

from benchmarks.peers.workers.worker import serve


class OpenvinoRunner:
    def load(
        self, model: str, max_num_seqs: int, max_model_len: int, num_kv_tokens: int, properties: dict[str, Any]
    ) -> dict[str, Any]:
        import openvino
        import openvino_genai as genai

        scheduler = genai.SchedulerConfig()
        scheduler.max_num_seqs = max_num_seqs
        scheduler.max_num_batched_tokens = max(512, max_model_len)
        scheduler.num_kv_blocks = -(-num_kv_tokens // 32)
        scheduler.enable_prefix_caching = True
        self._genai, self._openvino = genai, openvino
        self._pipeline = genai.ContinuousBatchingPipeline(model, scheduler, "CPU", properties)
        capabilities = openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
        return {"version": genai.__version__, "openvino": openvino.__version__, "capabilities": " ".join(capabilities)}

    def run(self, prompts: list[list[int]], new_tokens: int) -> list[list[int]]:
        import numpy as np

        config = self._genai.GenerationConfig()
        config.max_new_tokens = new_tokens
        config.ignore_eos = True
        config.do_sample = False
        inputs = [self._openvino.Tensor(np.array([prompt], dtype=np.int64)) for prompt in prompts]
        results = self._pipeline.generate(inputs, [config] * len(inputs))
        return [[int(token) for token in result.m_generation_ids[0]] for result in results]


if __name__ == "__main__":
    serve(OpenvinoRunner())
