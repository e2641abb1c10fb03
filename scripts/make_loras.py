#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes tests/models/loras, for tests/models/klein-tiny: random, and strong enough to change every stage.

    python scripts/make_loras.py        (needs torch, diffusers, peft; run from the top of the tree)

peft.safetensors is written by diffusers from a PEFT adapter, whose alpha stands in the metadata.  kohya.safetensors has
the names of kohya's trainer, with q, k and v as one tensor, a file's own alphas, and its dtype is bf16.
Their recordings, tests/reference/loras/*.safetensors, are made by scripts/record_reference.py --lora.
"""
from pathlib import Path

import torch
from diffusers import Flux2KleinPipeline
from peft import LoraConfig
from peft.utils import get_peft_model_state_dict
from safetensors.torch import save_file

MODEL, OUT = Path("tests/models/klein-tiny"), Path("tests/models/loras")


def make_peft():
    pipe = Flux2KleinPipeline.from_pretrained(MODEL, torch_dtype=torch.float32)
    random = torch.Generator().manual_seed(1)
    names = r"to_q|to_v|to_out\.0|add_k_proj|linear_in|linear_out|to_qkv_mlp_proj|x_embedder|proj_out"
    config = LoraConfig(r=3, lora_alpha=6, target_modules=rf"(.*\.)?({names})|single_transformer_blocks\.\d+\.attn\.to_out")
    pipe.transformer.add_adapter(config)
    state = {key: 0.3 * torch.randn(value.shape, generator=random) / value.shape[1] ** 0.5
             for key, value in get_peft_model_state_dict(pipe.transformer).items()}
    Flux2KleinPipeline.save_lora_weights(OUT, transformer_lora_layers=state, weight_name="peft.safetensors",
                                         transformer_lora_adapter_metadata=config.to_dict())


def make_kohya():
    random = torch.Generator().manual_seed(2)
    width, mlp, rank, state = 128, 384, 4, {}
    shapes = {f"double_blocks_{i}_{side}_attn_qkv": (3 * width, width) for i in range(2) for side in ("img", "txt")}
    shapes |= {f"double_blocks_{i}_img_attn_proj": (width, width) for i in range(2)}
    shapes |= {f"double_blocks_{i}_txt_mlp_0": (2 * mlp, width) for i in range(2)}
    shapes |= {f"single_blocks_{i}_linear1": (3 * width + 2 * mlp, width) for i in range(3)}
    shapes |= {f"single_blocks_{i}_linear2": (width, width + mlp) for i in range(3)}
    for name, (rows, columns) in shapes.items():
        for part, shape in (("down", (rank, columns)), ("up", (rows, rank))):
            draw = 0.5 * torch.randn(shape, generator=random) / shape[1] ** 0.5
            state[f"lora_unet_{name}.lora_{part}.weight"] = draw.to(torch.bfloat16)
        state[f"lora_unet_{name}.alpha"] = torch.tensor(2.0)
    save_file(state, OUT / "kohya.safetensors")


if __name__ == "__main__":
    OUT.mkdir(parents=True, exist_ok=True)
    make_peft()
    make_kohya()
