"""Modules that must share a scheme, because engines compute them with one kernel call (users' case 22).

q, k, v; gate, up; all experts of a layer; o and down each by themselves; the embedding with a head tied to it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from octavo.models.decoder import DecoderLayer, DecoderModel
from octavo.ops.base import Experts, Linear

EMBEDDING, HEAD = "embedding", "head"


@dataclass(frozen=True, slots=True)
class ModuleGroup:
    """`role` is what the modules are for; `block` None is outside the blocks."""

    role: str
    block: int | None
    modules: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.role if self.block is None else f"{self.block}.{self.role}"


def block_groups(layer: DecoderLayer) -> Iterator[tuple[ModuleGroup, list[Linear]]]:
    """A layer's groups and their linears."""
    roles = [("q k v", [layer.q, layer.k, layer.v]), ("o", [layer.o])]
    if isinstance(layer.mlp, Experts):
        roles.append(("experts", [linear for mlp in layer.mlps for linear in (mlp.gate, mlp.up, mlp.down)]))
    else:
        roles += [("gate up", [layer.mlp.gate, layer.mlp.up]), ("down", [layer.mlp.down])]
    for role, linears in roles:
        yield ModuleGroup(role, layer.index, tuple(linear.name for linear in linears)), linears


def outer_groups(model: DecoderModel) -> list[ModuleGroup]:
    """The embedding, and a head that is not tied to it."""
    embedding = ModuleGroup(EMBEDDING, None, (model.embedding.name,))
    return [embedding] if model.spec.tied_embedding else [embedding, ModuleGroup(HEAD, None, (model.head.name,))]
