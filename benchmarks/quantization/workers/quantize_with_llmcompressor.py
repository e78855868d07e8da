"""GPTQ by llm-compressor: `python quantize_with_llmcompressor.py JOB.json`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from datasets import Dataset
from llmcompressor import oneshot
from llmcompressor.modifiers.gptq import GPTQModifier
from transformers import AutoModelForCausalLM, AutoTokenizer

job = json.loads(Path(sys.argv[1]).read_text())
model = AutoModelForCausalLM.from_pretrained(job["source"], dtype=torch.float32)
windows = [[token for segment in window for token in segment] for window in job["windows"]]
data = Dataset.from_list([{"input_ids": window, "attention_mask": [1] * len(window)} for window in windows])
weights = QuantizationArgs(num_bits=job["bits"], type="int", symmetric=True, strategy="group", group_size=job["group"])
scheme = QuantizationScheme(targets=["Linear"], weights=weights)
oneshot(
    model=model,
    dataset=data,
    recipe=GPTQModifier(config_groups={"group_0": scheme}, ignore=["lm_head"]),
    max_seq_length=max(map(len, windows)),
    num_calibration_samples=len(windows),
)
model.save_pretrained(job["output"], save_compressed=True)
AutoTokenizer.from_pretrained(job["source"]).save_pretrained(job["output"])
