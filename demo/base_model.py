"""Turns a GGUF chat model into a Hugging Face directory in bfloat16. Runs on the machine's Python.

usage: base_model.py <gguf file> <new directory>
"""

import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

gguf, target = map(Path, sys.argv[1:])
AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(target)
AutoModelForCausalLM.from_pretrained(
    gguf.parent,
    gguf_file=gguf.name,
    dtype=torch.bfloat16,
    quantization_config=GgufConfig(dequantize=True),  # otherwise its weights stay packed
).save_pretrained(target)
