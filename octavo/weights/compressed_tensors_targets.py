"""Which modules a group of the config means: class names, patterns over layers, or single names.

Readers look a module up by name, then by pattern, then by class; vLLM, which fuses q/k/v and gate/up, looks up a fused
module's class before its members' names. So a class is named only where all its modules have one format.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

from octavo.weights.compressed_tensors_args import ModuleFormat
from octavo.weights.compressed_tensors_config import ModuleClass, module_class

#: What the module names of experts have in common, and the target that means them.
EXPERTS = ".experts."
EXPERTS_PATTERN = r"re:.*\.experts\..*"
#: Modules that engines join to one; they must have one format.
_FUSED = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
_IN_LAYER = re.compile(r"(.*?\.)(\d+)\.(.+)")


def targets_by_format(formats: dict[str, ModuleFormat], kind: ModuleClass) -> list[tuple[list[str], ModuleFormat]]:
    """Targets and format of each group of modules of one class, the commonest first.

    Experts that all have one format are also targeted by a pattern: transformers 5.24 stacks them, and takes their
    scheme from the group that has such a pattern, or else from the first group, which is the embedding's.
    """
    own = {module: found for module, found in formats.items() if module_class(module) is kind}
    expert_formats = {found for module, found in own.items() if EXPERTS in module}
    groups: dict[ModuleFormat, list[str]] = {}
    for module, found in own.items():
        groups.setdefault(found, []).append(module)
    ordered = sorted(groups.items(), key=lambda group: -len(group[1]))
    if len(ordered) == 1:
        experts = [EXPERTS_PATTERN] if expert_formats else []
        return [([kind.value, *experts], ordered[0][0])]
    result = []
    for found, modules in ordered:
        if expert_formats == {found}:
            names = [module for module in modules if EXPERTS not in module]
            result.append(([*compact_targets(names, own), EXPERTS_PATTERN], found))
        else:
            result.append((compact_targets(modules, own), found))
    return result


def compact_targets(modules: Iterable[str], every: Collection[str]) -> list[str]:
    """Names, and patterns over the layers in which modules of the same roles are meant: a few lines for hundreds of
    modules. `every` module that is targeted at all; a role that is meant in all its layers needs no numbers."""
    layers_of: dict[tuple[str, str], set[str]] = {}
    all_layers_of: dict[tuple[str, str], set[str]] = {}
    targets = []
    for module in every:
        if match := _IN_LAYER.fullmatch(module):
            all_layers_of.setdefault((match[1], match[3]), set()).add(match[2])
    for module in modules:
        if match := _IN_LAYER.fullmatch(module):
            layers_of.setdefault((match[1], match[3]), set()).add(match[2])
        else:
            targets.append(module)
    roles_of: dict[tuple[str, str], list[str]] = {}
    for (prefix, role), layers in sorted(layers_of.items()):
        in_all = layers == all_layers_of[prefix, role] and len(layers) > 1
        numbers = r"\d+" if in_all else "|".join(sorted(layers, key=int))
        roles_of.setdefault((prefix, numbers), []).append(role)
    for (prefix, numbers), roles in roles_of.items():
        if len(roles) == 1 and numbers.isdigit():
            targets.append(f"{prefix}{numbers}.{roles[0]}")
            continue
        layer = numbers if numbers == r"\d+" else f"({numbers})"
        targets.append(f"re:{re.escape(prefix)}{layer}\\.({'|'.join(map(re.escape, roles))})$")
    return sorted(targets)


def split_fused_members(formats: dict[str, ModuleFormat], dense: Collection[str]) -> list[str]:
    """Parents of modules that engines join, where these differ in format."""
    known: dict[str, ModuleFormat | None] = {**dict.fromkeys(dense), **formats}
    parents = dict.fromkeys(module.rpartition(".")[0] for module in formats)
    split = []
    for parent in parents:
        for members in _FUSED:
            found = {known[name] for member in members if (name := f"{parent}.{member}") in known}
            if len(found) > 1:
                split.append(f"{parent}.({'|'.join(members)})")
    return split
