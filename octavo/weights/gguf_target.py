"""Whether a GGUF file may be written where the user asks."""

from __future__ import annotations

from pathlib import Path

from octavo.core.errors import CheckpointError, InvalidField

#: `general.quantized_by` of our files.
QUANTIZED_BY = "Octavo"


def check_gguf_target(file: Path, overwrite: bool = False) -> None:
    """Raise `InvalidField` where writing would destroy what is not ours. Cheap: for the pre-flight."""
    if file.suffix != ".gguf":
        raise InvalidField("output", str(file), "a GGUF file is called <name>.gguf")
    if file.is_dir():
        raise InvalidField("output", str(file), "is a directory; name a .gguf file")
    if file.exists() and not overwrite and not _is_ours(file):
        raise InvalidField("output", str(file), "is a file that Octavo did not write; name another")


def _is_ours(file: Path) -> bool:
    from octavo.weights.gguf_file import GgufFile

    try:
        return GgufFile(file).metadata.get("general.quantized_by") == QUANTIZED_BY
    except CheckpointError:
        return False
