#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes tests/models/klein-heads12-tiny and its recording, with diffusers: a transformer of 12 heads, which 3 and 6 ranks can share.

    python scripts/make_heads12.py      (needs torch, diffusers, transformers; run from the top of the tree)

All but the transformer are links to klein-tiny.  Weights are random, scaled so that every stage has a magnitude of about 1.
The recording has the transformer's stages of the first step, what the scheduler got and gave in every step, and the picture.
"""
import json
import os
import shutil
from pathlib import Path

import numpy
import torch
from diffusers import Flux2KleinPipeline, Flux2Transformer2DModel
from safetensors.torch import save_file

BASE, MODEL = Path("tests/models/klein-tiny"), Path("tests/models/klein-heads12-tiny")
REFERENCE = Path("tests/reference/klein-heads12-tiny")
CASE = {"pipeline_dir": f"pipelines/{MODEL.name}", "prompt": "A cat holding a sign that says hello world", "seed": 42,
        "height_arg": 64, "width_arg": 64, "num_inference_steps": 4, "guidance_scale": 1.0, "max_sequence_length": 48}


def make_model():
    shutil.rmtree(MODEL, ignore_errors=True)
    MODEL.mkdir(parents=True)
    for name in ("model_index.json", "scheduler", "text_encoder", "tokenizer", "vae"):
        os.symlink(f"../{BASE.name}/{name}", MODEL / name)
    with open(BASE / "transformer/config.json", encoding="utf-8") as f:
        config = {k: v for k, v in json.load(f).items() if not k.startswith("_")}
    config.update(num_attention_heads=12, attention_head_dim=8, axes_dims_rope=[2, 2, 2, 2], num_layers=1,
                  num_single_layers=1, mlp_ratio=1.0)
    transformer = Flux2Transformer2DModel(**config)
    random = torch.Generator().manual_seed(12)
    with torch.no_grad():
        for p in transformer.parameters():
            draw = torch.randn(p.shape, generator=random)
            p.copy_(draw / p.shape[1] ** 0.5 if p.ndim == 2 else 1 + 0.1 * draw)
    transformer.to(torch.bfloat16).save_pretrained(MODEL / "transformer")


def record():
    pipe = Flux2KleinPipeline.from_pretrained(MODEL, torch_dtype=torch.float32)
    pipe.set_progress_bar_config(disable=True)
    t, stages, step = pipe.transformer, {}, pipe.scheduler.step
    hooks = []

    def keep(name, value):
        stages.setdefault(name, value.detach().float().contiguous().clone())

    def hook(module, name):
        hooks.append(module.register_forward_hook(lambda m, args, out: keep(name, out[0] if isinstance(out, tuple) else out)))

    def double(m, args, out):  # text first
        keep("step0.double.0.txt", out[0])
        keep("step0.double.0.img", out[1])

    def recorded(noise, time, latents, **kwargs):
        out = step(noise, time, latents, **kwargs)
        i = sum(k.endswith(".noise_pred") for k in stages)
        keep(f"step.{i}.noise_pred", noise)
        keep(f"step.{i}.latents", out[0] if isinstance(out, tuple) else out.prev_sample)
        return out

    for module, name in ((t.x_embedder, "x_embedder"), (t.context_embedder, "context_embedder"),
                         (t.single_transformer_blocks[0], "single.0"), (t.norm_out, "norm_out")):
        hook(module, f"step0.{name}")
    hooks.append(t.transformer_blocks[0].register_forward_hook(double))
    hook(t, "step0.transformer_out")
    pipe.scheduler.step = recorded
    with torch.no_grad():
        image = pipe(prompt=CASE["prompt"], height=CASE["height_arg"], width=CASE["width_arg"],
                     num_inference_steps=CASE["num_inference_steps"], guidance_scale=CASE["guidance_scale"],
                     max_sequence_length=CASE["max_sequence_length"],
                     generator=torch.Generator("cpu").manual_seed(CASE["seed"])).images[0]
    REFERENCE.mkdir(parents=True, exist_ok=True)
    stages["final.image_u8"] = torch.from_numpy(numpy.asarray(image).copy())
    save_file(stages, REFERENCE / "golden_64x64.safetensors")
    image.save(REFERENCE / "image_64x64.png")
    with open(REFERENCE / "case_64x64.json", "w", encoding="utf-8") as f:
        json.dump(CASE, f, indent=2)
        f.write("\n")
    for name, value in stages.items():
        print(f"{name} {list(value.shape)} rms {value.float().pow(2).mean().sqrt():.3f}")


torch.set_num_threads(1)
make_model()
record()
