#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Record the stages of one call of a diffusers Flux2 pipeline, for `difftp verify --against FILE`.

    python3 scripts/record_reference.py --model DIR --prompt TEXT --output stages.safetensors
    difftp verify --model DIR --tp-degree 4 --against stages.safetensors

The names are those of `difftp generate --dump-stages`; what the call was is in the file's metadata, so that verify repeats
it.  Needs torch, diffusers, transformers and safetensors.  Runs on the CPU: the initial noise is that of a CPU generator.
"""
import argparse
import inspect

import diffusers
import numpy as np
import torch
from safetensors.torch import save_file
from torch.nn.attention import SDPBackend, sdpa_kernel


class Recorder:
    """Named tensors, in float32 where they are not integers or float64; the first of a name is kept."""

    def __init__(self, pipe):
        self.pipe, self.tensors, self.texts, self.calls, self.steps = pipe, {}, 0, 0, 0

    def put(self, name, value):
        t = torch.as_tensor(value).detach()
        wide = t.dtype in (torch.float64, torch.int64, torch.uint8)
        self.tensors.setdefault(name, (t if wide else t.float()).clone(memory_format=torch.contiguous_format))

    def hook(self, module, fn):
        """fn(inputs, keywords, output) after each call of the module."""
        def call(_, args, kwargs, out):
            fn(args, kwargs, out)  # and no result: that would replace the module's

        module.register_forward_hook(call, with_kwargs=True)

    def wrap(self, owner, name, fn):
        """fn(keywords, result) after each call of a method, which keeps its signature."""
        old = getattr(owner, name)

        def call(*args, **kwargs):
            bound = inspect.signature(old).bind(*args, **kwargs)
            out = old(*args, **kwargs)
            fn({**bound.arguments, **bound.arguments.get("kwargs", {})}, out)
            return out

        call.__signature__ = inspect.signature(old)
        setattr(owner, name, call)

    def inside(self, module, name, pick=lambda out: out):
        """A part of the transformer: its first call counts."""
        self.hook(module, lambda args, kwargs, out: self.calls == 0 and self.put(f"step0.{name}", pick(out)))


def record_text(r, layers):
    def encoded(args, kwargs, out):
        name = ("text", "neg")[r.texts]
        r.put(f"{name}.input_ids", kwargs["input_ids"].long())
        r.put(f"{name}.attention_mask", kwargs["attention_mask"].long())
        for k in (0, 1, *layers):
            r.put(f"{name}.hidden_states.{k}", out.hidden_states[k])

    def embedded(kwargs, out):
        name = ("text", "neg")[r.texts]
        r.put(f"{name}.prompt_embeds", out[0])
        r.put(f"{name}.text_ids", out[1])
        r.texts += 1

    r.hook(r.pipe.text_encoder, encoded)
    r.wrap(r.pipe, "encode_prompt", embedded)


def record_steps(r, guided):
    def start(kwargs, out):
        packed, ids = out
        h, w = int(ids[0, :, 1].max()) + 1, int(ids[0, :, 2].max()) + 1
        r.put("init.noise", packed.transpose(1, 2).reshape(1, -1, h, w))
        r.put("init.latents_packed", packed)
        r.put("init.latent_ids", ids.long())

    def schedule(kwargs, out):
        r.put("sched.mu", torch.tensor([kwargs["mu"]], dtype=torch.float64))
        r.put("sched.sigmas_in", np.asarray(kwargs["sigmas"], dtype=np.float64))
        r.put("sched.sigmas", r.pipe.scheduler.sigmas)
        r.put("sched.timesteps", r.pipe.scheduler.timesteps)

    def step(kwargs, out):
        r.put(f"step.{r.steps}.noise_pred", kwargs["model_output"])
        r.put(f"step.{r.steps}.latents", out[0])
        r.steps += 1

    def predicted(args, kwargs, out):
        if r.calls == 0:
            for name in ("hidden_states", "timestep", "guidance"):
                if kwargs.get(name) is not None:
                    r.put(f"step0.in.{name}", kwargs[name])
            r.put("step0.in.img_ids", kwargs["img_ids"].long())
            r.put("step0.transformer_out", out[0])
        if guided:
            r.put(f"step.{r.steps}.noise_pred_{('cond', 'uncond')[r.calls % 2]}", out[0])
        r.calls += 1

    r.wrap(r.pipe, "prepare_latents", start)
    r.wrap(r.pipe.scheduler, "set_timesteps", schedule)
    r.wrap(r.pipe.scheduler, "step", step)
    r.hook(r.pipe.transformer, predicted)


def record_transformer(r):
    t, time = r.pipe.transformer, r.pipe.transformer.time_guidance_embed
    seen = {"proj": 0, "rope": 0}

    def projected(args, kwargs, out):
        if r.calls == 0:
            r.put(("step0.time_proj", "step0.guidance_proj")[seen["proj"]], out)
            seen["proj"] = 1

    def rotary(args, kwargs, out):
        name = ("img", "txt")[seen["rope"] % 2]
        seen["rope"] += 1
        r.put(f"step0.rope.{name}.cos", out[0])
        r.put(f"step0.rope.{name}.sin", out[1])

    r.hook(time.time_proj, projected)
    r.hook(t.pos_embed, rotary)
    r.inside(time.timestep_embedder, "timestep_embed")
    if time.guidance_embedder is not None:
        r.inside(time.guidance_embedder, "guidance_embed")
    r.inside(time, "temb")
    r.inside(t.double_stream_modulation_img, "mod_double_img")
    r.inside(t.double_stream_modulation_txt, "mod_double_txt")
    r.inside(t.single_stream_modulation, "mod_single")
    r.inside(t.x_embedder, "x_embedder")
    r.inside(t.context_embedder, "context_embedder")
    for i, block in enumerate(t.transformer_blocks):
        r.inside(block, f"double.{i}.txt", lambda out: out[0])
        r.inside(block, f"double.{i}.img", lambda out: out[1])
    for i, block in enumerate(t.single_transformer_blocks):
        r.inside(block, f"single.{i}")
    r.inside(t.norm_out, "norm_out")


def record_detail(r):
    """The inside of the first block of either kind."""
    t = r.pipe.transformer
    if len(t.transformer_blocks):
        attn, ff = t.transformer_blocks[0].attn, t.transformer_blocks[0].ff
        for name in ("to_q", "to_k", "to_v", "norm_q", "norm_k", "add_q_proj", "add_k_proj", "add_v_proj", "norm_added_q",
                     "norm_added_k", "to_add_out"):
            r.inside(getattr(attn, name), f"double.0.attn.{name}")
        r.inside(attn.to_out[0], "double.0.attn.to_out")
        r.hook(attn.to_out[0], lambda args, kwargs, out: r.calls == 0 and r.put("step0.double.0.attn.heads_img", args[0]))
        r.inside(ff.linear_in, "double.0.ff.linear_in")
        r.inside(ff.act_fn, "double.0.ff.act")
        r.inside(ff, "double.0.ff.out")
    if len(t.single_transformer_blocks):
        attn = t.single_transformer_blocks[0].attn
        for name in ("to_qkv_mlp_proj", "norm_q", "norm_k"):
            r.inside(getattr(attn, name), f"single.0.attn.{name}")
        r.hook(attn.to_out, lambda args, kwargs, out: r.calls == 0 and r.put("step0.single.0.attn.to_out_in", args[0]))
        r.inside(attn, "single.0.attn.out")


def record_vae(r):
    vae = r.pipe.vae

    def unpatchified(kwargs, out):
        r.put("final.latents_bn", kwargs["latents"])
        r.put("final.latents_unpatchified", out)

    r.wrap(r.pipe, "_unpack_latents_with_ids", lambda kwargs, out: r.put("final.latents_unpacked", out))
    r.wrap(r.pipe, "_unpatchify_latents", unpatchified)
    parts = {"post_quant_conv": vae.post_quant_conv, "conv_in": vae.decoder.conv_in, "mid": vae.decoder.mid_block,
             "conv_norm_out": vae.decoder.conv_norm_out, "image": vae.decoder.conv_out}
    parts.update({f"up.{i}": block for i, block in enumerate(vae.decoder.up_blocks)})
    for name, module in parts.items():
        r.hook(module, lambda args, kwargs, out, name=name: r.put(f"vae.{name}", out))


def fuse_loras(pipe, given):
    """In the order given, each with its scale, as `difftp --lora` merges them."""
    for i, text in enumerate(given):
        file, _, scale = text.rpartition(":") if ":" in text else (text, "", "1")
        pipe.load_lora_weights(file, adapter_name=f"lora{i}")
        pipe.set_adapters([f"lora{i}"], [float(scale)])
        pipe.fuse_lora(components=["transformer"], adapter_names=[f"lora{i}"])
        pipe.unload_lora_weights()


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", required=True, help="pipeline folder")
    p.add_argument("--prompt", required=True)
    p.add_argument("--output", required=True, help="safetensors file")
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--height", type=int, default=256)
    p.add_argument("--width", type=int, default=256)
    p.add_argument("--steps", type=int, default=4)
    p.add_argument("--guidance-scale", type=float, default=4.0)
    p.add_argument("--max-sequence-length", type=int, default=512)
    p.add_argument("--dtype", choices=("fp32", "bf16"), default="fp32")
    p.add_argument("--lora", action="append", default=[], metavar="FILE[:SCALE]", help="fused into the transformer; repeatable")
    p.add_argument("--only", default="", metavar="PREFIX", help="keep the stages whose names begin so")
    p.add_argument("--detail", action="store_true", help="also the inside of the first block of either kind")
    return p.parse_args()


def main():
    a = arguments()
    dtype = torch.float32 if a.dtype == "fp32" else torch.bfloat16
    pipe = diffusers.DiffusionPipeline.from_pretrained(a.model, torch_dtype=dtype)
    pipe.set_progress_bar_config(disable=True)
    fuse_loras(pipe, a.lora)
    guided = hasattr(pipe.config, "is_distilled") and not pipe.config.is_distilled and a.guidance_scale > 1
    layers = inspect.signature(pipe.__call__).parameters["text_encoder_out_layers"].default
    r = Recorder(pipe)
    record_text(r, layers)
    record_steps(r, guided)
    record_transformer(r)
    record_vae(r)
    if a.detail:
        record_detail(r)
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
        image = pipe(prompt=a.prompt, height=a.height, width=a.width, num_inference_steps=a.steps,
                     guidance_scale=a.guidance_scale, max_sequence_length=a.max_sequence_length,
                     generator=torch.Generator("cpu").manual_seed(a.seed)).images[0]
    r.put("final.image_u8", np.array(image))
    said = {"prompt": a.prompt, "seed": a.seed, "height": a.height, "width": a.width, "steps": a.steps,
            "guidance_scale": a.guidance_scale, "max_sequence_length": a.max_sequence_length, "dtype": a.dtype,
            "class": type(pipe).__name__, "recorded_by": f"diffusers {diffusers.__version__}, torch {torch.__version__}"}
    r.tensors = {name: t for name, t in r.tensors.items() if name.startswith(a.only)}
    save_file(r.tensors, a.output, metadata={key: str(value) for key, value in said.items()})
    print(f"{len(r.tensors)} stages in {a.output}")


if __name__ == "__main__":
    main()
