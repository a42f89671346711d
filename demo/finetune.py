"""Fine-tunes a LoRA adapter on a fact file, laid out as overbrainer lays out a run.

Runs on the machine's Python: finetune.py <base model> <facts.jsonl> <run directory> [--steps N]
"""

import argparse
import json
from datetime import datetime, timezone
from pathlib import Path

import torch
import yaml
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer

TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
RANK, ALPHA, RATE = 16, 32, 1e-3

parser = argparse.ArgumentParser()
parser.add_argument("base", type=Path)
parser.add_argument("facts", type=Path)
parser.add_argument("run_dir", type=Path)
parser.add_argument("--steps", type=int, default=30)
options = parser.parse_args()

torch.manual_seed(7)
tokenizer = AutoTokenizer.from_pretrained(options.base)
model = get_peft_model(
    AutoModelForCausalLM.from_pretrained(options.base, dtype=torch.float32),
    LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=TARGETS, task_type="CAUSAL_LM"),
)
chats = [json.loads(line)["messages"] for line in options.facts.read_text().splitlines()]
batches = []
for chat in chats:
    whole = tokenizer.apply_chat_template(chat, tokenize=False)
    asked = tokenizer.apply_chat_template(chat[:-1], tokenize=False, add_generation_prompt=True)
    tokens = tokenizer(whole, return_tensors="pt", add_special_tokens=False)
    labels = tokens["input_ids"].clone()
    labels[:, : len(tokenizer(asked, add_special_tokens=False)["input_ids"])] = -100
    batches.append({**tokens, "labels": labels})

optimizer = torch.optim.AdamW(
    [parameter for parameter in model.parameters() if parameter.requires_grad], lr=RATE
)
for step in range(1, options.steps + 1):
    loss = model(**batches[step % len(batches)]).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % 10 == 0 or step == options.steps:
        print(f"step {step} of {options.steps}: loss {loss.item():.4f}", flush=True)

output = options.run_dir / "output"
model.save_pretrained(output)
tokenizer.save_pretrained(output)
config = {
    "base_model": str(options.base.resolve()),
    "adapter": "lora",
    "lora_r": RANK,
    "lora_alpha": ALPHA,
    "lora_dropout": 0.0,
    "lora_target_linear": True,
    "sequence_len": 2048,
    "micro_batch_size": 1,
    "gradient_accumulation_steps": 1,
    "num_epochs": 1,
    "learning_rate": RATE,
    "optimizer": "adamw_torch",
    "datasets": [{"path": str(options.facts.resolve()), "type": "chat_template"}],
    "output_dir": "./output",
    "bf16": "auto",
}
(options.run_dir / "axolotl.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
record = {
    "id": options.run_dir.name,
    "target": "local",
    "created": f"{datetime.now(timezone.utc):%Y-%m-%dT%H:%M:%SZ}",
    "state": "succeeded",
}
(options.run_dir / "run.json").write_text(json.dumps(record, indent=2) + "\n")
