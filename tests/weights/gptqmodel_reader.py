"""Run by the Python of an environment that has gptqmodel (not a test): DIRECTORY OUT.

Saves into OUT (safetensors) the logits that gptqmodel computes with its plain torch kernel for the prompts of
`tests.weights.stored.logits_of`.
"""

import sys

import torch
from gptqmodel import BACKEND, GPTQModel
from safetensors.torch import save_file


def main(directory: str, out: str) -> None:
    awq = "awq" in directory
    backend = BACKEND.TORCH_AWQ if awq and hasattr(BACKEND, "TORCH_AWQ") else BACKEND.TORCH
    model = GPTQModel.load(directory, device="cpu", backend=backend, dtype=torch.float16).model.eval()
    ids = torch.arange(40).reshape(2, 20) * 7 % model.config.vocab_size
    with torch.no_grad():
        logits = model(ids).logits
    save_file({"logits": logits.float().contiguous()}, out)


if __name__ == "__main__":
    main(*sys.argv[1:])
