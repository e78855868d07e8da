"""`octavo inspect`: what a model is, how it is stored, whether its numbers are sane, what it was measured to lose."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from octavo.core.units import format_bytes

if TYPE_CHECKING:
    from octavo.models.spec import ModelSpec
    from octavo.weights.checkpoint import Checkpoint


def run(
    model: Annotated[str, typer.Argument(help="A directory, a .gguf file or a catalog name.")],
    check: Annotated[bool, typer.Option("--check/--no-check", help="Read every tensor and look for NaN.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show a model's shape, storage schemes, bytes, true bits per weight and measured quality.

    Ends with exit code 1 if numbers are not sane.
    """
    report = examine(model, check)
    if as_json:
        print(json.dumps(report))
    else:
        print("\n".join(_lines(report)))
    if report["problems"]:
        raise typer.Exit(1)


def examine(model: str, check: bool = True) -> dict[str, Any]:
    """Everything that is shown. `problems` is None where the tensors were not read."""
    from octavo.models.load import open_model_checkpoint
    from octavo.serve.model_info import read_quality
    from octavo.weights.checkpoint import num_weights, true_bits_per_weight
    from octavo.weights.inventory import count_storage, group_modules
    from octavo.weights.sanity import find_problems

    checkpoint = open_model_checkpoint(model)
    parts = _examine_parts(checkpoint)
    return {
        "model": model,
        "path": str(checkpoint.source),
        "format": _format(checkpoint),
        "architecture": _architecture(checkpoint.config),
        "num_weights": num_weights(checkpoint),
        "weight_bytes": checkpoint.num_bytes,
        "true_bits_per_weight": true_bits_per_weight(checkpoint),
        "storage": [count.to_dict() for count in count_storage(checkpoint)],
        "modules": [group.to_dict() for group in group_modules(checkpoint)],
        "kv_cache": parts["kv_cache"],
        "notes": list(checkpoint.notes) if check else [],
        "warnings": parts["warnings"],
        "problems": [*find_problems(checkpoint), *parts["problems"]] if check else None,
        "quality": read_quality(checkpoint.source),
    }


def _examine_parts(checkpoint: Checkpoint) -> dict[str, Any]:
    """What a model's parts must be to each other; nothing of a model that Octavo does not know."""
    from octavo.core.errors import UnsupportedModel
    from octavo.models.registry import read_spec
    from octavo.weights.sanity import find_head_problems, find_kv_problems, find_split_schemes

    try:
        spec = read_spec(checkpoint.config)
    except UnsupportedModel:
        return {"kv_cache": "unknown", "warnings": [], "problems": []}
    names, layers = spec.names, range(spec.num_layers)
    attentions = [names.in_layer(layer, names.q).rpartition(".")[0] for layer in layers]
    problems, kv_cache = find_kv_problems(checkpoint, attentions)
    head, embedding = f"{names.head}.weight", f"{names.embedding}.weight"
    problems += find_head_problems(checkpoint, head, embedding, spec.tied_embedding)
    fused = [[names.in_layer(layer, name) for name in (names.q, names.k, names.v)] for layer in layers]
    dense_mlps = [layer for layer in layers if spec.layers[layer].experts is None]
    fused += [[names.in_layer(layer, name) for name in (names.gate, names.up)] for layer in dense_mlps]
    return {"kv_cache": kv_cache, "warnings": find_split_schemes(checkpoint, fused), "problems": problems}


def _format(checkpoint: Checkpoint) -> str:
    if checkpoint.source.suffix == ".gguf":
        return "GGUF"
    section = checkpoint.config.get("quantization_config")
    if not section:
        return "safetensors"
    detail = section.get("checkpoint_format") or section.get("format") or section.get("version") or ""
    return f"{section.get('quant_method')} {detail}".strip()


def _architecture(config: dict[str, Any]) -> dict[str, Any]:
    """Shapes as Octavo understands them; for a model it does not run, the name and the reason."""
    from octavo.core.errors import UnsupportedModel
    from octavo.models.registry import read_spec

    name = next(iter(config.get("architectures") or []), config.get("model_type"))
    try:
        spec = read_spec(config)
    except UnsupportedModel as error:
        return {"name": name, "supported": False, "reason": str(error)}
    return {
        "name": name,
        "supported": True,
        "num_layers": spec.num_layers,
        "hidden_size": spec.hidden_size,
        "intermediate_size": spec.intermediate_size,
        "num_heads": spec.num_heads,
        "num_kv_heads": spec.num_kv_heads,
        "head_dim": spec.head_dim,
        "vocab_size": spec.vocab_size,
        **_experts(spec),
        "max_position_embeddings": spec.max_position_embeddings,
        "tied_embedding": spec.tied_embedding,
    }


def _experts(spec: ModelSpec) -> dict[str, int]:
    """Of a mixture: its layers are alike wherever they have experts."""
    layers = [layer.experts for layer in spec.layers if layer.experts is not None]
    if not layers:
        return {}
    return {
        "num_expert_layers": len(layers),
        "num_experts": layers[0].num_experts,
        "experts_per_token": layers[0].experts_per_token,
        "expert_intermediate_size": layers[0].intermediate_size,
    }


def _lines(report: dict[str, Any]) -> Iterator[str]:
    architecture = dict(report["architecture"])
    yield f"{report['model']}  ({report['path']})"
    yield _row("architecture", architecture.pop("name"))
    if not architecture.pop("supported"):
        yield _row("not supported", architecture.pop("reason"))
    for name, value in architecture.items():
        yield _row(name, value)
    yield _row("parameters", f"{report['num_weights']:,}")
    yield _row("format", report["format"])
    yield _row("weight files", f"{report['weight_bytes']:,} bytes ({format_bytes(report['weight_bytes'])})")
    yield _row("bits per weight", f"{report['true_bits_per_weight']:.3f}, everything in the files counted")
    yield ""
    yield f"  {'stored as':45} {'tensors':>8} {'weights':>13} {'bytes':>13} {'bits/weight':>12}"
    for count in report["storage"]:
        yield (
            f"  {count['storage']:45} {count['num_tensors']:8} {count['num_weights']:13,} {count['num_bytes']:13,} "
            f"{count['bits_per_weight']:12.3f}"
        )
    yield ""
    if report["modules"]:
        yield f"  {'quantized modules':52} {'count':>5}  stored as"
        yield from (f"  {each['pattern']:52} {each['num_tensors']:5}  {each['storage']}" for each in report["modules"])
        yield ""
    yield _row("KV cache scales", report["kv_cache"])
    yield from (_row("note", note) for note in report["notes"])
    yield from (_row("WARNING", warning) for warning in report["warnings"])
    yield from _problem_lines(report["problems"])
    yield ""
    yield from _quality_lines(report["quality"])


def _problem_lines(problems: list[str] | None) -> Iterator[str]:
    if problems is None:
        yield _row("numbers", "not read (--no-check)")
    elif not problems:
        yield _row("numbers", "sane: every value and scale is finite, no scale is zero")
    else:
        yield _row("NOT SANE", f"{len(problems)} problems")
        yield from (f"    {problem}" for problem in problems)


def _quality_lines(quality: dict[str, Any] | None) -> Iterator[str]:
    if quality is None:
        yield _row("quality", "not measured (octavo quantize and octavo evaluate do that)")
        return
    yield "  quality (octavo.json)"
    for name, value in _flatten(quality, ""):
        yield f"    {name:45} {value}"


def _flatten(value: dict[str, Any], prefix: str) -> Iterator[tuple[str, str]]:
    """Nested names joined by dots. A list of objects (one for each module) is only counted."""
    for name, inner in value.items():
        if isinstance(inner, dict):
            yield from _flatten(inner, f"{prefix}{name}.")
        elif isinstance(inner, list) and any(isinstance(item, dict) for item in inner):
            yield prefix + name, f"{len(inner)} entries"
        elif isinstance(inner, list):
            yield prefix + name, ", ".join(map(_shown, inner)) or "none"
        else:
            yield prefix + name, _shown(inner)


def _shown(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "none"}[value]
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _row(name: str, value: Any) -> str:
    return f"  {name.replace('_', ' '):24} {value if isinstance(value, str) else _shown(value)}"
