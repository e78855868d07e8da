"""GPTQ by GPTQModel: `python quantize_with_gptqmodel.py JOB.json`. Its own defaults but for bits and group."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

os.environ["GPTQMODEL_CPU_WORKERS"] = "2"

import torch
from gptqmodel import GPTQModel, QuantizeConfig

if __name__ == "__main__":
    job = json.loads(Path(sys.argv[1]).read_text())
    windows = [[token for segment in window for token in segment] for window in job["windows"]]
    calibration = [{"input_ids": window, "attention_mask": [1] * len(window)} for window in windows]
    config = QuantizeConfig(bits=job["bits"], group_size=job["group"])
    # By itself it takes bfloat16, which AVX2 multiplies ten times slower.
    model = GPTQModel.load(job["source"], config, device="cpu", dtype=torch.float32)
    model.quantize(calibration, batch_size=1)
    model.save(job["output"])
