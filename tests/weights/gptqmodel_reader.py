"""Run by the Python of an environment that has gptqmodel (not a test): DIRECTORY OUT.

Saves into OUT (safetensors) every quantized weight of a GPTQ or AWQ directory, float32 `[outputs, inputs]`, as
gptqmodel's own unpackers decode it.
"""

import json
import sys
from pathlib import Path

import torch
from gptqmodel.quantization.awq.utils.packing_utils import dequantize_gemm
from gptqmodel.utils.model_dequant import convert_gptq_file
from safetensors.torch import load_file, save_file


def main(directory: Path, out: str) -> None:
    section = json.loads((directory / "config.json").read_text())["quantization_config"]
    file = directory / "model.safetensors"
    tensors = load_file(file)
    modules = [name.removesuffix(".qweight") for name in tensors if name.endswith(".qweight")]
    if section["quant_method"] == "gptq":
        decoded = convert_gptq_file(file, torch.float32, section, "cpu")
        weights = {module: decoded[f"{module}.weight"] for module in modules}
    else:
        weights = {module: _awq(tensors, module, section["group_size"]) for module in modules}
    save_file({f"{module}.weight": weight.contiguous() for module, weight in weights.items()}, out)


def _awq(tensors: dict[str, torch.Tensor], module: str, group_size: int) -> torch.Tensor:
    parts = [tensors[f"{module}.{part}"] for part in ("qweight", "qzeros", "scales")]
    return dequantize_gemm(parts[0], parts[1], parts[2].float(), 4, group_size).T


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
