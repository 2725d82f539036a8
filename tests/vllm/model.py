"""Writes a small model of random weights: ``model.py KIND DIRECTORY``.

Four layers, large enough for their answers to depend on their context.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import torch
import transformers
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, pre_tokenizers

SIZES = {
    "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 1024, "initializer_range": 0.25,
    "max_position_embeddings": 4096, "bos_token_id": None, "eos_token_id": None,
}  # fmt: skip


def llama(**changes):
    config = transformers.LlamaConfig(**SIZES | changes)
    return transformers.LlamaForCausalLM(config)


def windowed():
    """Full attention and windows of 128 tokens by turns."""
    config = transformers.Gemma3TextConfig(
        **SIZES | {"pad_token_id": None},
        head_dim=64,
        sliding_window=128,
        query_pre_attn_scalar=64,
        tie_word_embeddings=False,
        layer_types=["sliding_attention", "full_attention"] * 2,
    )
    return transformers.Gemma3ForCausalLM(config)


def adapter(seed):
    """A LoRA adapter of the model, far enough from nothing to change its answers."""

    def save(where):
        torch.manual_seed(seed)
        rank, size = 8, SIZES["hidden_size"]
        names = ("q_proj", "v_proj")
        wide = {"q_proj": size, "v_proj": size // 2}
        weights = {
            f"base_model.model.model.layers.{layer}.self_attn.{name}.lora_{part}.weight": 0.5
            * torch.randn((rank, size) if part == "A" else (wide[name], rank))
            for layer in range(SIZES["num_hidden_layers"])
            for name in names
            for part in "AB"
        }
        where.mkdir(parents=True, exist_ok=True)
        save_file(weights, where / "adapter_model.safetensors")
        config = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "target_modules": names,
                  "bias": "none", "task_type": "CAUSAL_LM"}  # fmt: skip
        (where / "adapter_config.json").write_text(json.dumps(config))

    return SimpleNamespace(save_pretrained=save)


KINDS = {
    "full": llama,
    "windowed": windowed,
    "one head": lambda: llama(num_key_value_heads=1),
    "adapter 1": lambda: adapter(1),
    "adapter 2": lambda: adapter(2),
}


def write_tokenizer(where):
    """One word a token: ``w0`` to ``w1023``."""
    words = {f"w{i}": i for i in range(SIZES["vocab_size"])}
    made = Tokenizer(models.WordLevel(words, unk_token="w0"))  # noqa: S106 - no password
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=made, unk_token="w0")  # noqa: S106
    fast.save_pretrained(where)


if __name__ == "__main__":
    torch.manual_seed(0)
    KINDS[sys.argv[1]]().save_pretrained(Path(sys.argv[2]))
    write_tokenizer(sys.argv[2])
