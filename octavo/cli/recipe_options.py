"""The options of every command that quantizes: one for each field of a recipe. Imports nothing heavy."""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from octavo.core.errors import InvalidField

if TYPE_CHECKING:
    from octavo.quantize.recipe import Recipe


def _options(
    bits: Annotated[int, typer.Option(help="Bits of the linears: 2, 3, 4 or 8.")] = 4,
    group: Annotated[str, typer.Option(help="Inputs that share a scale: 16..256, or `channel`.")] = "64",
    method: Annotated[str, typer.Option(help="gptq, rtn (no calibration), signround or qat.")] = "gptq",
    scheme: Annotated[str, typer.Option(help="int (see bits), w8a8, fp8, nvfp4, mxfp4, ternary, ...")] = "int",
    transform: Annotated[list[str] | None, typer.Option(help="rotate, smooth, awq; may be repeated.")] = None,
    asymmetric: Annotated[bool, typer.Option("--asymmetric", help="Integer zero points.")] = False,
    embedding_bits: Annotated[int, typer.Option(help="Bits of embedding and head; 16 keeps them.")] = 8,
    scale_dtype: Annotated[str, typer.Option(help="float16, bfloat16 or float32.")] = "float16",
    search: Annotated[bool, typer.Option(help="Search scales by squared error.")] = True,
    act_order: Annotated[bool, typer.Option(help="GPTQ: most active inputs first (static groups).")] = True,
    damping: Annotated[float, typer.Option(help="GPTQ: first share of the mean diagonal tried.")] = 0.01,
    kv_cache: Annotated[str | None, typer.Option(help="int8 or fp8: calibrated scales for the KV cache.")] = None,
    smoothing: Annotated[float | None, typer.Option(help="SmoothQuant's alpha (unset: searched).")] = None,
    rotation_block: Annotated[int | None, typer.Option(help="Features rotated together (unset: all).")] = None,
    seed: Annotated[int, typer.Option(help="Draws rotations.")] = 0,
    steps: Annotated[int, typer.Option(help="signround, qat: updates of each block.")] = 100,
    distill_steps: Annotated[int, typer.Option(help="Updates of the whole model afterwards.")] = 0,
    train: Annotated[str, typer.Option(help="What distillation changes: scales (zeros, norms) or all.")] = "scales",
) -> Recipe:
    from octavo.quantize.recipe import Recipe

    return Recipe(
        method=method,
        bits=bits,
        group=parse_group(group),
        symmetric=not asymmetric,
        act_order=act_order,
        damping=damping,
        search=search,
        embedding_bits=embedding_bits,
        scale_dtype=scale_dtype,
        scheme=scheme,
        transforms=tuple(transform or ()),
        kv_cache=kv_cache,
        smoothing=smoothing,
        rotation_block=rotation_block,
        seed=seed,
        steps=steps,
        distill_steps=distill_steps,
        train=train,
    )


def takes_recipe(run: Callable[..., None]) -> Callable[..., None]:
    """`run(recipe=...)` as a command: the recipe's options stand where its `recipe` parameter does."""
    own = typing.get_type_hints(_options, include_extras=True, localns={"Recipe": Any})
    hints = typing.get_type_hints(run, include_extras=True, localns={"Recipe": Any})
    options = [each.replace(annotation=own[each.name]) for each in inspect.signature(_options).parameters.values()]

    @functools.wraps(run)
    def command(**arguments: Any) -> None:
        fields = {option.name: arguments.pop(option.name) for option in options}
        run(**arguments, recipe=_options(**fields))

    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(run).parameters.values():
        replaced = parameter.name == "recipe"
        parameters += options if replaced else [parameter.replace(annotation=hints[parameter.name])]
    ordered = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in parameters]
    command.__signature__ = inspect.Signature(ordered)  # type: ignore[attr-defined]
    command.__annotations__ = {each.name: each.annotation for each in ordered}
    return command


def parse_group(text: str) -> int | None:
    """`channel` -> None, else a number. Raises `InvalidField`."""
    if text == "channel":
        return None
    try:
        return int(text)
    except ValueError:
        raise InvalidField("group", text, "a number of inputs such as 64, or `channel`") from None
