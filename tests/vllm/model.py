"""Writes a small model of random weights: ``model.py KIND DIRECTORY``.

Four layers, large enough for their answers to depend on their context.
"""

from __future__ import annotations

import sys

import torch
import transformers

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


KINDS = {
    "full": llama,
    "windowed": windowed,
    "one head": lambda: llama(num_key_value_heads=1),
}

if __name__ == "__main__":
    torch.manual_seed(0)
    KINDS[sys.argv[1]]().save_pretrained(sys.argv[2])
