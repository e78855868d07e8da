"""`LLM`: whole batches offline, with vLLM's names."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from octavo.core.errors import InvalidField, OctavoError
from octavo.core.outputs import CompletionOutput, OutputDelta, RequestOutput
from octavo.core.request import Request
from octavo.core.sampling_params import SamplingParams
from octavo.engine.build import Progress, build_engine
from octavo.engine.config import EngineConfig
from octavo.engine.memory import MemoryPlan
from octavo.text.tokenizer import Tokenizer

#: A text, token ids, or {"prompt": text} / {"prompt_token_ids": ids}.
Prompt = str | Sequence[int] | Mapping[str, Any]
Messages = Sequence[Mapping[str, Any]]


class LLM:
    """A model ready to answer. Settings are those of `EngineConfig`; unknown ones are refused by name.

    ```
    llm = LLM("smollm2-135m", memory="2GiB")
    [result] = llm.generate("The capital of France is", SamplingParams(max_tokens=8))
    result.outputs[0].text
    ```
    """

    def __init__(
        self,
        model: str | Path,
        *,
        dtype: str = "float32",
        memory: str | int | None = None,
        block_size: int = 16,
        max_model_len: int | None = None,
        max_num_seqs: int = 32,
        max_num_batched_tokens: int = 512,
        prefix_caching: bool = True,
        executor: str = "auto",
        kv_dtype: str = "auto",
        threads: int | None = None,
        isa: str | None = None,
        progress: Progress | None = None,
        **unknown: Any,
    ) -> None:
        for name, value in unknown.items():
            raise InvalidField(name, value, f"LLM takes {', '.join(EngineConfig.__dataclass_fields__)}")
        config = EngineConfig(
            model=model,
            dtype=dtype,
            memory=memory,
            block_size=block_size,
            max_model_len=max_model_len,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            prefix_caching=prefix_caching,
            executor=executor,
            kv_dtype=kv_dtype,
            threads=threads,
            isa=isa,
        )
        built = build_engine(config, progress)
        self.config = config
        self.engine = built.engine
        self.memory_plan: MemoryPlan = built.plan
        self._request_numbers = itertools.count()

    def get_tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return self.engine.tokenizer

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = False,
    ) -> list[RequestOutput]:
        """Answers in the order of the prompts. `sampling_params`: one for all or one for each.

        Texts are tokenized with the model's special tokens (a BOS where its tokenizer adds one). Raises `InvalidField`
        or `CapacityError` naming the prompt, before anything runs.
        """
        inputs = [self._read_prompt(prompt, place) for place, prompt in enumerate(_as_prompts(prompts))]
        return self._answer(inputs, _one_for_each(sampling_params, len(inputs)), use_tqdm)

    def chat(
        self,
        messages: Messages | Sequence[Messages],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = False,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
    ) -> list[RequestOutput]:
        """The next turn of one conversation or of each of several, through the model's chat template."""
        several = bool(messages) and not isinstance(messages[0], Mapping)
        conversations: Sequence[Any] = messages if several else [messages]
        tokenizer = self.engine.tokenizer
        inputs: list[tuple[str | None, list[int]]] = [
            (None, tokenizer.encode_chat(each, tools, add_generation_prompt)) for each in conversations
        ]
        return self._answer(inputs, _one_for_each(sampling_params, len(inputs)), use_tqdm)

    def _read_prompt(self, prompt: Prompt, place: int) -> tuple[str | None, list[int]]:
        if isinstance(prompt, Mapping):
            given = dict(prompt)
            text, ids = given.pop("prompt", None), given.pop("prompt_token_ids", None)
            if given or (text is None) == (ids is None):
                raise InvalidField(f"prompts[{place}]", prompt, 'give either "prompt" or "prompt_token_ids", no more')
            prompt = text if ids is None else ids
        if isinstance(prompt, str):
            return prompt, self.engine.tokenizer.encode(prompt)
        if not isinstance(prompt, list | tuple):
            raise InvalidField(f"prompts[{place}]", prompt, "must be a text or a list of token ids")
        return None, list(prompt)

    def _answer(
        self, inputs: list[tuple[str | None, list[int]]], sampling: Sequence[SamplingParams], use_tqdm: bool
    ) -> list[RequestOutput]:
        results: dict[str, RequestOutput] = {}
        try:
            for (text, ids), params in zip(inputs, sampling, strict=True):
                request = Request(f"llm-{next(self._request_numbers)}", ids, params, prompt=text)
                self.engine.add(request)
                outputs = [CompletionOutput(index, cumulative_logprob=_no_sum(params)) for index in range(params.n)]
                for output in outputs:
                    output.logprobs = None if params.logprobs is None else []
                results[request.request_id] = RequestOutput(request.request_id, text, ids, outputs)
            self._run(results, use_tqdm)
        finally:
            for request_id in results:
                self.engine.abort(request_id)
            while self.engine.has_work:
                self.engine.step()
        return list(results.values())

    def _run(self, results: dict[str, RequestOutput], use_tqdm: bool) -> None:
        with _progress_bar(len(results), use_tqdm) as advance:
            while self.engine.has_work:
                for delta in self.engine.step():
                    if delta.error is not None:
                        raise OctavoError(f"request {delta.request_id} failed: {delta.error}")
                    result = results[delta.request_id]
                    extend_output(result, delta)
                    if result.finished:
                        advance()


def extend_output(result: RequestOutput, delta: OutputDelta) -> None:
    """Add one delta to the whole result it belongs to."""
    output = result.outputs[delta.index]
    output.text += delta.text
    output.token_ids += delta.token_ids
    if delta.logprobs is not None and output.logprobs is not None:
        output.logprobs += delta.logprobs
        chosen = zip(delta.token_ids, delta.logprobs, strict=True)
        output.cumulative_logprob = (output.cumulative_logprob or 0.0) + sum(
            each[token].logprob for token, each in chosen
        )
    result.num_cached_tokens = max(result.num_cached_tokens, delta.num_cached_tokens)
    if delta.prompt_logprobs is not None:
        result.prompt_logprobs = delta.prompt_logprobs
    if delta.finish_reason is not None:
        output.finish_reason, output.stop_reason = str(delta.finish_reason), delta.stop_reason
        result.timing = delta.timing
        result.finished = all(each.finish_reason is not None for each in result.outputs)


def _no_sum(params: SamplingParams) -> float | None:
    return None if params.logprobs is None else 0.0


def _as_prompts(prompts: Any) -> Sequence[Any]:
    """One prompt is a text, a mapping or a list of token ids; anything else is a list of prompts."""
    if isinstance(prompts, str | Mapping):
        return [prompts]
    if not isinstance(prompts, Sequence):
        raise InvalidField("prompts", prompts, "must be a text, token ids, or a list of these")
    if prompts and all(isinstance(each, int) for each in prompts):
        return [prompts]
    return prompts


def _one_for_each(params: SamplingParams | Sequence[SamplingParams] | None, count: int) -> Sequence[SamplingParams]:
    if params is None:
        params = SamplingParams()
    if isinstance(params, SamplingParams):
        return [params] * count
    if len(params) != count:
        raise InvalidField("sampling_params", f"{len(params)} of them", f"give one, or one for each of {count} prompts")
    return params


class _progress_bar:
    """A bar over finished requests, or nothing."""

    def __init__(self, total: int, shown: bool) -> None:
        self._total, self._shown = total, shown

    def __enter__(self) -> Any:
        if not self._shown:
            return lambda: None
        from rich.progress import Progress as Bar

        self._bar = Bar(transient=True)
        task = self._bar.add_task("answering", total=self._total)
        self._bar.start()
        return lambda: self._bar.advance(task)

    def __exit__(self, *_: object) -> None:
        if self._shown:
            self._bar.stop()
