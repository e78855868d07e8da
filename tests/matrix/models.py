"""One tiny model, and what it becomes: quantized by every scheme, exported to every format. Made once, when asked."""

from __future__ import annotations

import functools
import gc
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from octavo.export_job import ExportReport
from octavo.numerics.scheme import Scheme
from octavo.quantize.recipe import Recipe
from octavo.quantize.schemes import INTEGER, NAMED, linear_scheme

#: Scheme -> fields of a recipe. Every name of `schemes.NAMED` is one; integers come as formats tell them apart.
SCHEMES: dict[str, dict[str, Any]] = {
    "int8": {"bits": 8, "group": None},
    "int4": {"bits": 4, "group": 32},
    "int4 asymmetric": {"bits": 4, "group": 32, "symmetric": False},
    "int3": {"bits": 3, "group": 32},
    "int2 asymmetric": {"bits": 2, "group": 32, "symmetric": False},
    **{name: {"scheme": name} for name in NAMED},
}

#: What keeps a run short; no quality is looked at here.
_QUICK: dict[str, Any] = {"search": False, "embedding_bits": 16}
_TEXT = {"samples": 2, "sequence_length": 32, "measure": None, "say": lambda line: None}


def weights_of(scheme: str) -> Scheme:
    """What weights become in one of `SCHEMES`."""
    fields = {"scheme": INTEGER, "bits": 4, "group": None, "symmetric": True, **SCHEMES[scheme]}
    return linear_scheme(fields["scheme"], fields["bits"], fields["group"], fields["symmetric"]).weights


@dataclass
class TinyModels:
    """Everything under one folder."""

    folder: Path

    @functools.cached_property
    def source(self) -> Path:
        """One block, hidden 64: all groups and blocks of the schemes divide it, or may be ragged."""
        from tests.checkpoints import make_tiny

        sizes = {
            "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1, "num_attention_heads": 2,
            "num_key_value_heads": 1, "head_dim": 32,
        }  # fmt: skip
        return make_tiny("llama-tied", self.folder / "source", **sizes)

    @functools.cached_property
    def text(self) -> Path:
        """Calibration text."""
        file = self.folder / "calibration.txt"
        file.write_text("".join(f"{i * i} sheep and {i} wolves. " for i in range(120)))
        return file

    def recipe(self, scheme: str, **fields: Any) -> Recipe:
        steps = {"steps": 2} if fields.get("method") in ("signround", "qat") else {}
        return Recipe.of(**{**_QUICK, **SCHEMES[scheme], **steps, **fields})

    def walk(self, recipe: Recipe) -> None:
        """Pre-flight and the walk, in memory: each linear of the block is quantized, to finite numbers."""
        from octavo.api import plan_quantization
        from octavo.models.load import load_model
        from octavo.quantize.calibration import load_calibration
        from octavo.quantize.journal import Journal
        from octavo.quantize.pipeline import quantize_model

        plan_quantization(self.source, recipe, 2, 32)
        loaded = load_model(self.source)
        calibration = load_calibration(loaded.tokenizer, self.text, 2, 32) if recipe.needs_calibration else None
        journal = Journal(self.folder / "walk.journal", {"recipe": recipe.to_dict()})
        result = quantize_model(loaded.model, recipe, calibration, journal)
        journal.remove()
        assert len(result.reports) == 7
        assert all(linear.weight.dequantize().isfinite().all() for linear in loaded.model.layers[0].linears())

    @functools.cache  # noqa: B019 (lives as long as the session)
    def quantized(self, scheme: str, kv_cache: str | None = None) -> Path:
        """A written checkpoint; ternary by training, everything else rounded to nearest."""
        from octavo.api import quantize

        recipe = self.recipe(scheme, method="qat" if scheme == "ternary" else "rtn", kv_cache=kv_cache)
        directory = self.folder / f"quantized-{scheme}-{kv_cache}".replace(" ", "-")
        text = str(self.text) if recipe.needs_calibration else None
        quantize(self.source, directory, **recipe.to_dict(), calibration=text, **_TEXT)
        return directory

    @functools.cache  # noqa: B019
    def exported(self, checkpoint: Path, format_name: str) -> tuple[Path, ExportReport]:
        """The checkpoint in another format, and what export says of it."""
        from octavo.api import export

        name = f"{checkpoint.name}-as-{format_name}"
        target = self.folder / (f"{name}.gguf" if format_name == "gguf" else name)
        return target, export(checkpoint, target, format_name)

    def __hash__(self) -> int:
        return id(self)


def logits(checkpoint: Path) -> Any:
    """Of a fixed prompt, by the reference ops in float32."""
    from octavo.models.load import load_model
    from octavo.ops.reference.batch import whole_prompts
    from octavo.ops.reference.ops import ReferenceOps

    return load_model(checkpoint).model.forward(ReferenceOps(), whole_prompts([list(range(40, 60))]))


def serve(checkpoint: Path, executor: str, kv_dtype: str = "auto") -> None:
    """The engine answers a request."""
    from octavo import LLM, SamplingParams

    gc.freeze()  # an engine collects garbage before it allocates: seconds, with all that a test session holds
    llm = LLM(checkpoint, executor=executor, kv_dtype=kv_dtype, max_num_seqs=1, max_model_len=64, threads=1)
    [result] = llm.generate([{"prompt_token_ids": [40, 41, 42]}], SamplingParams(max_tokens=3, ignore_eos=True))
    assert len(result.outputs[0].token_ids) == 3
