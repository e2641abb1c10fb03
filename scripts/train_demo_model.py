#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the demo model of tests/models/demo from nothing: a complete small FLUX.2-klein pipeline that draws captioned
scenes.  Needs torch, diffusers, transformers and Pillow; two CPU cores do.

    t="python3 scripts/train_demo_model.py --work DIR --stage"
    $t tokenizer                                                    byte-level BPE in Qwen2's format, from captions
    $t text --steps 400 --decay-steps 200 --muon 4e-3 --adamw 3e-3  Qwen3ForCausalLM: its states must tell what a caption says
    $t vae --steps 2400 --decay-steps 600 --muon 4e-3 --adamw 2e-3 --bf16        AutoencoderKLFlux2, on rendered scenes
    $t encode                                                       latents and text states of scenes, kept on disk
    $t train --steps 3000 --decay-steps 1200 --batch 24 --bf16      Flux2Transformer2DModel on those
    $t export                                                       the pipeline in bf16, into --out
    $t judge --difftp ./difftp --docs docs/demo                     scores, contact sheets, training curve

Every stage can be stopped and called again: it goes on from its last checkpoint in DIR; checkpoints replace one another
atomically.  text, vae and train keep a constant rate for --steps and then let it fall to 0 over --decay-steps, so a run can
be ended well at any time: stop it and call the stage with --steps 0 --decay-steps N.  A stage that is done does nothing
more unless --steps is beyond where it is.  The state from before the fall stays in DIR as *.steady.pt; put back as *.pt, it
goes on at the constant rate.  --init-from takes the weights of a pipeline's folder, part by part, where DIR has none.

The scenes: one or two of 6 shapes in 8 colours and 3 sizes on a plain ground, centres on a 3 x 3 grid.  A caption says all
that varies but the radius (+-2 %), which is what lets 4 steps suffice without distillation.  Objects whose shape, colour
and place together are in the held-out eighth (held_out()) never occur in training; the test captions have only such.

Padding: the pipeline pads a caption to 512 tokens and the transformer attends to the pads.  So the text encoder is taught to
hold the caption's content in every pad, at any place, and the transformer sees each pad of a random sample of the places
with the weight of those that it stands for (its logit raised by their number's logarithm): lengths 32 to 512 for the price
of 40 tokens.
"""
import argparse
import copy
import json
import math
import os
import random
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import numpy as np
import torch
import torch.nn.functional as F
from diffusers import AutoencoderKLFlux2, Flux2KleinPipeline, Flux2Transformer2DModel, FlowMatchEulerDiscreteScheduler
from PIL import Image
from transformers import Qwen2TokenizerFast, Qwen3Config, Qwen3ForCausalLM

SIDE = 128  # pixels; 8 x 8 image tokens
LATENT = 128  # channels of a token: 32 of the VAE in patches of 2 x 2

# ---------------------------------------------------------------------------------------------------------------- scenes

SHAPES = ("circle", "square", "triangle", "diamond", "cross", "star")
COLOURS = {
    "red": (214, 40, 40), "orange": (245, 130, 32), "yellow": (250, 215, 50), "green": (40, 150, 70),
    "blue": (35, 85, 200), "purple": (125, 50, 165), "pink": (245, 140, 185), "black": (35, 35, 40),
}
GROUNDS = {
    "white": (246, 246, 244), "gray": (150, 152, 156), "black": (35, 35, 40), "blue": (35, 85, 200),
    "green": (40, 150, 70), "yellow": (250, 215, 50), "pink": (245, 140, 185),
}
PALETTE = {**COLOURS, **GROUNDS}
SIZES = {"small": 17.0, "medium": 21.0, "large": 25.0}
CENTRES = (32, 64, 96)
PLACES = {  # cell (column, row) of the 3 x 3 grid; the middle is where an object without a place goes
    (1, 1): ("", "", " in the center", " in the middle"), (0, 1): (" on the left",), (2, 1): (" on the right",),
    (1, 0): (" at the top",), (1, 2): (" at the bottom",), (0, 0): (" in the top left corner", " at the top left"),
    (2, 0): (" in the top right corner", " at the top right"), (0, 2): (" in the bottom left corner", " at the bottom left"),
    (2, 2): (" in the bottom right corner", " at the bottom right"),
}
RELATIONS = {  # of the first object to the second: the first one's cell, the second one's, how it is said
    "left": ((0, 1), (2, 1), ("left of", "to the left of", "and")),
    "right": ((2, 1), (0, 1), ("right of", "to the right of")), "above": ((1, 0), (1, 2), ("above",)),
    "below": ((1, 2), (1, 0), ("below", "under")),
}


@dataclass(frozen=True)
class Thing:
    colour: str
    shape: str
    size: str
    cell: tuple[int, int]


@dataclass(frozen=True)
class Scene:
    things: tuple[Thing, ...]
    ground: str
    caption: str


def held_out(t: Thing) -> bool:
    """Whether the test, and not the training, has this shape in this colour at this place: an eighth of all triples."""
    return (3 * SHAPES.index(t.shape) + list(COLOURS).index(t.colour) + 5 * (3 * t.cell[1] + t.cell[0])) % 8 == 0


def draw_thing(rng: random.Random, cell, ground: str, other: Thing | None, test: bool) -> Thing:
    while True:
        t = Thing(rng.choice(list(COLOURS)), rng.choice(SHAPES), rng.choice(("small", "medium", "medium", "large")), cell)
        if t.colour != ground and (other is None or t.colour != other.colour) and held_out(t) == test:
            return t


def draw_scene(rng: random.Random, count: int, test: bool = False) -> Scene:
    said = rng.random() < 0.5
    ground = rng.choice(list(GROUNDS)) if said else "white"

    def name(t: Thing) -> str:
        words = f"{t.colour} {t.shape}" if t.size == "medium" else f"{t.size} {t.colour} {t.shape}"
        return ("an " if words[0] == "o" else "a ") + words

    if count == 1:
        cell = rng.choice(list(PLACES))
        things = (draw_thing(rng, cell, ground, None, test),)
        caption = name(things[0]) + rng.choice(PLACES[cell])
    else:
        first, second, words = RELATIONS[rng.choice(list(RELATIONS))]
        a = draw_thing(rng, first, ground, None, test)
        things = (a, draw_thing(rng, second, ground, a, test))
        caption = f"{name(a)} {rng.choice(words)} {name(things[1])}"
    if said:
        caption += f" on a {ground} background"
    if rng.random() < 0.15 and not test:
        caption = caption[0].upper() + caption[1:]
    if rng.random() < 0.1 and not test:
        caption += "."
    return Scene(things, ground, caption)


def polygon_distance(points: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Signed distance, negative inside."""
    best, inside = np.full(x.shape, np.inf), np.zeros(x.shape, bool)
    for (ax, ay), (bx, by) in zip(points, np.roll(points, -1, 0)):
        t = np.clip(((x - ax) * (bx - ax) + (y - ay) * (by - ay)) / ((bx - ax) ** 2 + (by - ay) ** 2), 0, 1)
        best = np.minimum(best, np.hypot(x - ax - t * (bx - ax), y - ay - t * (by - ay)))
        if ay != by:
            inside ^= ((ay > y) != (by > y)) & (x < (bx - ax) * (y - ay) / (by - ay) + ax)
    return np.where(inside, -best, best)


def ring(corners: int, radii: tuple[float, ...], turn: float) -> np.ndarray:
    angle = turn + 2 * math.pi * np.arange(corners) / corners
    r = np.array([radii[i % len(radii)] for i in range(corners)])
    return np.stack([r * np.cos(angle), r * np.sin(angle)], 1)


TRIANGLE = ring(3, (1.2,), -math.pi / 2) + [0, 0.3]  # + 0.3: its box is centred
STAR = ring(10, (1.2, 0.56), -math.pi / 2) + [0, 0.115]


def distance(shape: str, r: float, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    ax, ay = np.abs(x), np.abs(y)
    if shape == "circle":
        return np.hypot(x, y) - r
    if shape == "square":
        return np.maximum(ax, ay) - 0.88 * r
    if shape == "diamond":
        return (ax + ay - 1.2 * r) / math.sqrt(2)
    if shape == "cross":
        return np.minimum(np.maximum(ax - r, ay - 0.36 * r), np.maximum(ax - 0.36 * r, ay - r))
    return polygon_distance((TRIANGLE if shape == "triangle" else STAR) * r, x, y)


PIXELS = np.arange(SIDE) + 0.5


def render(scene: Scene, rng: random.Random) -> np.ndarray:
    """(SIDE, SIDE, 3) float32 in 0..1.  Everything is a little lighter at its top than at its bottom."""
    fall = np.linspace(1.03, 0.95, SIDE, dtype=np.float32)[:, None, None]
    picture = np.broadcast_to(np.array(GROUNDS[scene.ground], np.float32) / 255, (SIDE, SIDE, 3)) * fall
    for t in scene.things:
        r = SIZES[t.size] * rng.uniform(0.98, 1.02)
        cx, cy = (CENTRES[i] for i in t.cell)
        lo_x, lo_y = int(max(0, cx - 36)), int(max(0, cy - 36))
        x, y = np.meshgrid(PIXELS[lo_x:cx + 36] - cx, PIXELS[lo_y:cy + 36] - cy)
        cover = np.clip(0.5 - distance(t.shape, r, x, y), 0, 1)[..., None]
        shade = (1.06 - 0.10 * (y / r + 1))[..., None]
        part = picture[lo_y:cy + 36, lo_x:cx + 36]
        part += (cover * (np.array(COLOURS[t.colour]) / 255 * shade - part)).astype(np.float32)
    return np.clip(picture, 0, 1)


def training_scene(seed: int) -> tuple[Scene, random.Random]:
    rng = random.Random(seed)
    return draw_scene(rng, 1 if rng.random() < 0.45 else 2), rng


def test_scenes(count: int, things: int, seed: int = 1) -> list[Scene]:
    """Different captions, each object of a held-out triple."""
    rng, scenes = random.Random(f"test {things} {seed}"), {}
    while len(scenes) < count:
        s = draw_scene(rng, things, test=True)
        scenes[s.caption] = s
    return list(scenes.values())


def as_tensor(pictures: list[np.ndarray]) -> torch.Tensor:
    return torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2).float() * 2 - 1


# ----------------------------------------------------------------------------------------------------------------- judge


def components(mask: np.ndarray) -> list[np.ndarray]:
    """Masks of the 4-connected parts of at least 60 pixels."""
    left, found = mask.copy(), []
    while left.any():
        part, stack = np.zeros_like(mask), [tuple(np.argwhere(left)[0])]
        left[stack[0]] = False
        while stack:
            y, x = stack.pop()
            part[y, x] = True
            for ny, nx in ((y - 1, x), (y + 1, x), (y, x - 1), (y, x + 1)):
                if 0 <= ny < SIDE and 0 <= nx < SIDE and left[ny, nx]:
                    left[ny, nx] = False
                    stack.append((ny, nx))
        if part.sum() >= 60:
            found.append(part)
    return found


def boxed(mask: np.ndarray) -> np.ndarray:
    """The mask's bounding box, scaled to 32 x 32."""
    ys, xs = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    crop = mask[ys[0]:ys[-1] + 1, xs[0]:xs[-1] + 1]
    return np.asarray(Image.fromarray((crop * 255).astype(np.uint8)).resize((32, 32), Image.BILINEAR)) > 127


def shape_masks() -> dict[str, np.ndarray]:
    x, y = np.meshgrid(PIXELS - 64, PIXELS - 64)
    return {s: boxed(distance(s, 40, x, y) < 0) for s in SHAPES}


TEMPLATES = shape_masks()


def look(picture: np.ndarray) -> tuple[str, list[dict]]:
    """What is in a picture (uint8): its ground, and for each object the colour, the shape, the centre and the radius."""
    names, values = list(PALETTE), np.array(list(PALETTE.values()), float)
    p = picture.astype(float)
    near = ((p[:, :, None] - values) ** 2).sum(-1).argmin(-1)
    edge = np.concatenate([near[:3].ravel(), near[-3:].ravel(), near[:, :3].ravel(), near[:, -3:].ravel()])
    ground = np.bincount(edge, minlength=len(names)).argmax()
    if (edge == ground).mean() < 0.9:
        return "none", []
    things = []
    for part in components(near != ground):
        colour = np.bincount(near[part], minlength=len(names)).argmax()
        # An edge pixel belongs to the object if it is nearer to its colour than to the ground's.
        along = values[colour] - values[ground]
        mask = part & (((p - values[ground]) @ along) > 0.5 * (along @ along))
        if mask.sum() < 60:
            continue
        ys, xs = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
        fit = {s: (boxed(mask) & t).sum() / (boxed(mask) | t).sum() for s, t in TEMPLATES.items()}
        shape = max(fit, key=fit.get)
        things.append({
            "colour": names[colour], "shape": shape if fit[shape] >= 0.75 else "none",
            "centre": ((xs[0] + xs[-1] + 1) / 2, (ys[0] + ys[-1] + 1) / 2), "radius": (xs[-1] - xs[0] + 1) / 2,
        })
    return names[ground], things


def judge(picture: np.ndarray, scene: Scene) -> dict[str, bool]:
    """Right or wrong: colour, shape and place over all objects, ground, and all of it with no object too many."""
    ground, seen = look(picture)
    right = {"colour": True, "shape": True, "place": True, "ground": ground == scene.ground}
    for t in scene.things:
        want = [CENTRES[i] for i in t.cell]
        o = min(seen, key=lambda o: math.dist(o["centre"], want), default=None)
        right["place"] &= o is not None and math.dist(o["centre"], want) <= 12
        right["colour"] &= o is not None and o["colour"] == t.colour
        right["shape"] &= o is not None and o["shape"] == t.shape
    right["all"] = all(right.values()) and len(seen) == len(scene.things)
    return right


def scores(pictures: list[np.ndarray], scenes: list[Scene]) -> dict[str, float]:
    verdicts = [judge(p, s) for p, s in zip(pictures, scenes)]
    return {k: round(100 * sum(v[k] for v in verdicts) / len(verdicts), 1) for k in verdicts[0]}


def to_bytes(picture: np.ndarray) -> np.ndarray:
    return np.round(np.clip(picture, 0, 1) * 255).astype(np.uint8)


def judge_the_judge(count: int = 400) -> dict:
    """The judge on true renders, and on the same renders with the captions of others."""
    report = {}
    for things in (1, 2):
        scenes = test_scenes(count, things)
        pictures = [to_bytes(render(s, random.Random(i))) for i, s in enumerate(scenes)]
        report[f"true renders, objects: {things}"] = scores(pictures, scenes)["all"]
        report[f"shuffled captions, objects: {things}"] = scores(pictures, scenes[1:] + scenes[:1])["all"]
    return report


# ------------------------------------------------------------------------------------------------------------- machinery


class Muon(torch.optim.Optimizer):
    """Momentum, orthogonalised (Newton-Schulz), for matrices and for convolutions taken as matrices; its updates are as
    large as AdamW's.  Matrices of one shape are done together."""

    def __init__(self, params, lr: float, momentum: float = 0.95):
        super().__init__(params, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            alike = {}
            for p in group["params"]:
                if p.grad is not None:
                    m = self.state[p].setdefault("m", torch.zeros_like(p))
                    m.lerp_(p.grad, 1 - group["momentum"])
                    alike.setdefault(p.flatten(1).shape, []).append((p, p.grad.lerp(m, group["momentum"]).flatten(1)))
            for (rows, columns), members in alike.items():
                x = torch.stack([g for _, g in members])
                x = (x.mT if rows > columns else x).bfloat16()
                x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
                for _ in range(5):
                    a = x @ x.mT
                    x = 3.4445 * x + (-4.775 * a + 2.0315 * a @ a) @ x
                x = (x.mT if rows > columns else x).float()
                for (p, _), u in zip(members, x):
                    p.add_(u.reshape(p.shape), alpha=-group["lr"] * 0.2 * math.sqrt(max(rows, columns)))


class Trainer:
    """One network's training: rates that warm up, stay, and fall in the end; gradient clipping; an average of the weights;
    a checkpoint every two minutes, from which the next call goes on."""

    def __init__(self, args, name: str, net: torch.nn.Module, optimizers, average: float = 0.995):
        self.args, self.name, self.net, self.optimizers, self.average = args, name, net, optimizers, average
        self.path = args.work / f"{name}.pt"
        self.step, self.falls, self.curve, self.saved, self.seconds = 0, None, [], time.time(), 0.0
        self.ema = {k: v.detach().clone() for k, v in net.state_dict().items()}
        self.rates = [[g["lr"] for g in o.param_groups] for o in optimizers]
        if self.path.exists():
            state = torch.load(self.path, weights_only=False)
            net.load_state_dict(state["net"])
            self.ema, self.step, self.curve, self.seconds = state["ema"], state["step"], state["curve"], state["seconds"]
            self.falls = state["falls"]
            for o, s in zip(optimizers, state["optimizers"]):
                o.load_state_dict(s)
            print(f"{name}: goes on at step {self.step}", flush=True)
        if self.falls and (self.step < sum(self.falls) or args.steps <= self.step):
            self.end = sum(self.falls)  # it was stopped while the rate fell, or it is done
        else:
            self.falls, self.end = None, max(args.steps, self.step) + args.decay_steps

    def running(self) -> bool:
        return self.step < self.end

    def rate(self) -> float:
        if not self.falls and self.args.decay_steps and self.step == self.end - self.args.decay_steps:
            self.save(self.path.with_suffix(".steady.pt"))  # from which to go on at the constant rate, another time
            self.falls = (self.step, self.args.decay_steps)
        fall = (self.end - self.step) / self.falls[1] if self.falls else 1.0
        return min(1.0, (self.step + 1) / 50) * fall

    def update(self, loss: torch.Tensor):
        scale = self.rate()
        for o, rates in zip(self.optimizers, self.rates):
            for group, rate in zip(o.param_groups, rates):
                group["lr"] = rate * scale
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
        if torch.isfinite(norm):
            for o in self.optimizers:
                o.step()
        self.net.zero_grad(set_to_none=True)
        keep = min(self.average, (1 + self.step) / (10 + self.step))
        with torch.no_grad():
            for k, v in self.net.state_dict().items():
                if v.is_floating_point():
                    self.ema[k].lerp_(v, 1 - keep)
                else:
                    self.ema[k].copy_(v)
        self.step += 1
        self.curve.append(loss.item())
        if self.step % 50 == 0:
            recent = sum(self.curve[-50:]) / 50
            self.seconds += (now := time.time()) - getattr(self, "tick", now)
            self.tick = now
            print(f"{self.name} {self.step}/{self.end} loss {recent:.4f} rate x{scale:.2f} {self.seconds / 60:.1f} min",
                  flush=True)
        if time.time() - self.saved > 120 or not self.running():
            self.save()

    def save(self, path: Path | None = None):
        save_atomically({
            "net": self.net.state_dict(), "ema": self.ema, "step": self.step, "falls": self.falls, "curve": self.curve,
            "seconds": self.seconds, "optimizers": [o.state_dict() for o in self.optimizers],
        }, path or self.path)
        self.saved = time.time()


def save_atomically(value, path: Path):
    torch.save(value, part := path.with_suffix(".part"))
    os.replace(part, path)


def optimizers_for(net: torch.nn.Module, in_blocks, muon: float, adamw: float):
    matrices, rest = [], []
    for n, p in net.named_parameters():
        if p.requires_grad:
            (matrices if p.ndim >= 2 and in_blocks(n) else rest).append(p)
    return [Muon(matrices, muon), torch.optim.AdamW(rest, adamw, betas=(0.9, 0.95), weight_decay=0.0)]


def averaged(net, trainer):
    """A copy with the averaged weights."""
    net = copy.deepcopy(net).eval()
    net.load_state_dict(trainer.ema)
    return net


def start(args, net, part: str):
    """The network, with the weights of --init-from if that was given and has the part."""
    if args.init_from and (args.init_from / part).exists():
        net.load_state_dict(type(net).from_pretrained(args.init_from, subfolder=part, torch_dtype=torch.float32).state_dict())
    return net


# ------------------------------------------------------------------------------------------------------------- tokenizer

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"] + [f"<|{n}|>" for n in (
    "object_ref_start", "object_ref_end", "box_start", "box_end", "quad_start", "quad_end", "vision_start", "vision_end",
    "vision_pad", "image_pad", "video_pad")]
ADDED = ["<tool_call>", "</tool_call>"] + [f"<|{n}|>" for n in (
    "fim_prefix", "fim_middle", "fim_suffix", "fim_pad", "repo_name", "file_sep")] + [
    "<tool_response>", "</tool_response>", "<think>", "</think>"]
TEMPLATE = (
    "{%- for m in messages %}{{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}"
    "{%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}{%- endif %}"
)
VOCABULARY = 512


def stage_tokenizer(args):
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
    from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX

    t = Tokenizer(models.BPE())
    t.normalizer, t.decoder = normalizers.NFC(), decoders.ByteLevel()
    t.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(PRETOKENIZE_REGEX), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)])
    text = [training_scene(i)[0].caption for i in range(20000)] + ["user\n", "assistant\n", "\n\n", "system\n"] * 500
    t.train_from_iterator(text, trainers.BpeTrainer(
        vocab_size=VOCABULARY - 40, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    model = json.loads(t.to_str())["model"]
    out = args.work / "tokenizer"
    tokenizer = Qwen2TokenizerFast(
        vocab=model["vocab"], merges=[tuple(m) for m in model["merges"]], eos_token="<|im_end|>", pad_token="<|endoftext|>",
        unk_token=None, model_max_length=131072, clean_up_tokenization_spaces=False)
    tokenizer.add_special_tokens({"additional_special_tokens": SPECIAL})
    tokenizer.add_tokens([AddedToken(s, special=True, normalized=False) for s in SPECIAL])
    tokenizer.add_tokens([AddedToken(s, normalized=False) for s in ADDED])
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(out)
    (out / "vocab.json").write_text(json.dumps(model["vocab"], ensure_ascii=False))
    (out / "merges.txt").write_text("#version: 0.2\n" + "".join(f"{a} {b}\n" for a, b in model["merges"]))
    lengths = [len(ids) for ids in prompt_ids(load_tokenizer(args), text[:2000])]
    print(f"tokenizer: {len(tokenizer)} tokens; captions take {min(lengths)} to {max(lengths)}")


def load_tokenizer(args):
    own = args.work / "tokenizer"
    return Qwen2TokenizerFast.from_pretrained(own if own.exists() or not args.init_from else args.init_from / "tokenizer")


def prompt_ids(tokenizer, captions: list[str]) -> list[list[int]]:
    """As the pipeline makes them, without the pads."""
    texts = [tokenizer.apply_chat_template([{"role": "user", "content": c}], tokenize=False, add_generation_prompt=True,
                                           enable_thinking=False) for c in captions]
    return tokenizer(texts)["input_ids"]


# ------------------------------------------------------------------------------------------------------------------- VAE


def new_vae() -> AutoencoderKLFlux2:
    vae = AutoencoderKLFlux2(block_out_channels=(16, 16, 32, 64), layers_per_block=1, norm_num_groups=2, latent_channels=32,
                             sample_size=SIDE)
    with torch.no_grad():  # the posterior's variance is not learnt
        vae.quant_conv.weight[32:] = 0
        vae.quant_conv.bias[32:] = -6
    return vae


def load_vae(args) -> AutoencoderKLFlux2:
    vae = start(args, new_vae(), "vae")
    if (args.work / "vae.pt").exists():
        vae.load_state_dict(torch.load(args.work / "vae.pt", weights_only=False)["ema"])
    if (args.work / "norm.pt").exists():
        norm = torch.load(args.work / "norm.pt")
        vae.bn.running_mean.copy_(norm["mean"])
        vae.bn.running_var.copy_(norm["var"])
    return vae.eval()


def vae_batch(step: int, whole: bool) -> torch.Tensor:
    """4 crops of 64 pixels, each at an object, or 1 whole picture."""
    pictures = []
    for i in range(1 if whole else 4):
        scene, rng = training_scene(10_000_000 + 4 * step + i)
        picture = render(scene, rng)
        if not whole:
            t = rng.choice(scene.things)
            x, y = (min(64, max(0, CENTRES[c] - 32 + 8 * rng.randint(-2, 2))) for c in t.cell)
            picture = picture[y:y + 64, x:x + 64]
        pictures.append(picture)
    return as_tensor(pictures).contiguous(memory_format=torch.channels_last)


def psnr(vae, count: int = 64) -> float:
    scenes = test_scenes(count // 2, 1) + test_scenes(count // 2, 2)
    x = as_tensor([render(s, random.Random(i)) for i, s in enumerate(scenes)])
    y = through(vae, x)
    return float((-10 * torch.log10((((x - y) / 2) ** 2).mean((1, 2, 3)))).mean())


@torch.no_grad()
def through(vae, x: torch.Tensor) -> torch.Tensor:
    return torch.cat([vae.decode(vae.encode(c).latent_dist.mode()).sample for c in x.split(16)]).clamp(-1, 1)


def stage_vae(args):
    vae = start(args, new_vae(), "vae").to(memory_format=torch.channels_last)
    inner = [n for n, m in vae.named_modules() if isinstance(m, (torch.nn.Conv2d, torch.nn.Linear)) and ".conv_" not in f".{n}"]
    optimizers = optimizers_for(vae, lambda n: n.rpartition(".")[0] in inner, args.muon, args.adamw)
    trainer = Trainer(args, "vae", vae, optimizers)
    at_once = args.decay_steps and trainer.end - args.decay_steps // 2
    while trainer.running():
        vae.train()
        x = vae_batch(trainer.step, trainer.step % 4 == 0 or (at_once and trainer.step >= at_once))
        with torch.autocast("cpu", torch.bfloat16, enabled=args.bf16):
            mean = vae.encode(x).latent_dist.mean.float()
            z = mean + 0.1 * mean.detach().std() * torch.randn(mean.shape, generator=torch.Generator().manual_seed(trainer.step))
            error = vae.decode(z).sample.float() - x
        edges = error.diff(dim=2).abs().mean() + error.diff(dim=3).abs().mean()
        trainer.update(error.abs().mean() + error.square().mean() + 0.5 * edges + 1e-4 * mean.square().mean())
        if trainer.step % 500 == 0:
            print(f"vae {trainer.step}: PSNR {psnr(averaged(vae, trainer)):.1f} dB", flush=True)
    vae = averaged(vae, trainer)
    print(f"vae: PSNR {psnr(vae):.2f} dB on held-out scenes, {sum(p.numel() for p in vae.parameters()) / 1e6:.2f} M parameters")


# ---------------------------------------------------------------------------------------------------------- text encoder

SHORT = 32  # tokens: every caption fits; the pads behind are sampled
STRATA = 8  # sampled pads: one of each eighth of the places SHORT..511
SPAN = (512 - SHORT) // STRATA
LAYERS = (9, 18, 27)  # whose hidden states the pipeline takes


def new_text_encoder() -> Qwen3ForCausalLM:
    """28 layers whose residual stream stays near the embeddings' size from the first to the last."""
    net = Qwen3ForCausalLM(Qwen3Config(
        vocab_size=VOCABULARY, hidden_size=64, intermediate_size=160, num_hidden_layers=28, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, tie_word_embeddings=True, max_position_embeddings=40960,
        rope_parameters={"rope_theta": 1000000.0, "rope_type": "default"}, bos_token_id=None, eos_token_id=None))
    for n, p in net.named_parameters():
        if p.ndim == 2:
            std = 0.6 if "embed" in n else 0.025 if "o_proj" in n or "down_proj" in n else p.shape[1] ** -0.5
            torch.nn.init.normal_(p, std=std)
    return net


def load_text_encoder(args) -> Qwen3ForCausalLM:
    net = start(args, new_text_encoder(), "text_encoder")
    if (args.work / "text.pt").exists():
        saved = torch.load(args.work / "text.pt", weights_only=False)["ema"]
        net.load_state_dict({k[4:]: v for k, v in saved.items() if k.startswith("net.")})
    return net.eval()


class Reader(torch.nn.Module):
    """A text encoder's first layers with a linear reader behind, which must tell what the caption says: of the objects (by
    place: left or upper one first; the second may be none) colour, shape, size and cell, and of the ground.  The layers
    behind the first nine stay as they were drawn: they add a little to the residual stream, which keeps what it holds."""

    fields = [8, 6, 3, 9, 9, 7, 4, 10, 7]

    def __init__(self, net: Qwen3ForCausalLM):
        super().__init__()
        self.net, self.depth = net, net.config.num_hidden_layers
        self.head = torch.nn.Linear(net.config.hidden_size, sum(self.fields))

    def forward(self, ids, mask, where) -> torch.Tensor:
        self.net.config.num_hidden_layers = LAYERS[0]
        h = self.net.model(input_ids=ids, attention_mask=mask, position_ids=where, use_cache=False).last_hidden_state
        self.net.config.num_hidden_layers = self.depth
        return self.head(h)

    @staticmethod
    def answers(scene: Scene) -> list[int]:
        things, found = sorted(scene.things, key=lambda t: (t.cell[1], t.cell[0])), []
        for t in things:
            found += [list(COLOURS).index(t.colour), SHAPES.index(t.shape), list(SIZES).index(t.size), 3 * t.cell[1] + t.cell[0]]
        return found + [8, 6, 3, 9] * (2 - len(things)) + [list(GROUNDS).index(scene.ground)]


def padded(tokenizer, captions: list[str], places: torch.Tensor):
    """Token ids, mask and places of SHORT tokens and one pad at each of `places`; the captions' lengths."""
    rows = prompt_ids(tokenizer, captions)
    ids = torch.full((len(rows), SHORT + len(places)), tokenizer.pad_token_id)
    mask = torch.zeros_like(ids)
    for i, row in enumerate(rows):
        if len(row) > SHORT:
            raise SystemExit(f"'{captions[i]}' takes {len(row)} tokens, more than {SHORT}")
        ids[i, :len(row)] = torch.tensor(row)
        mask[i, :len(row)] = 1
    where = torch.cat([torch.arange(SHORT), places]).expand(len(rows), -1)
    return ids, mask, where, mask.sum(1)


def sampled_places(rng: torch.Generator) -> torch.Tensor:
    return SHORT + SPAN * torch.arange(STRATA) + torch.randint(SPAN, (STRATA,), generator=rng)


def states(net, ids, mask, where) -> tuple[torch.Tensor, ...]:
    out = net.model(input_ids=ids, attention_mask=mask, position_ids=where, output_hidden_states=True, use_cache=False)
    return tuple(out.hidden_states[k] for k in LAYERS)


def stage_text(args):
    tokenizer, reader = load_tokenizer(args), Reader(start(args, new_text_encoder(), "text_encoder"))
    trainer = Trainer(args, "text", reader, optimizers_for(reader, lambda n: "layers" in n, args.muon, args.adamw), average=0.98)
    while trainer.running():
        rng = torch.Generator().manual_seed(trainer.step)
        scenes = [training_scene(20_000_000 + args.batch * trainer.step + i)[0] for i in range(args.batch)]
        places = sampled_places(rng)[torch.randperm(STRATA, generator=rng)[:STRATA // 2]]
        loss, right = read(reader, tokenizer, scenes, places)
        trainer.update(loss)
        if trainer.step % 50 == 0:
            print(f"text {trainer.step}: all fields right in training {right:.1f} %", flush=True)
    reader = averaged(reader, trainer)
    for things in (1, 2):
        with torch.no_grad():
            right = read(reader, tokenizer, test_scenes(200, things), sampled_places(torch.Generator().manual_seed(1)))[1]
        print(f"text: all fields of held-out captions right, objects: {things}: {right:.1f} %")


def read(reader: Reader, tokenizer, scenes: list[Scene], places: torch.Tensor) -> tuple[torch.Tensor, float]:
    """Loss, and the per cent of places (pads, and the prompt's last three tokens) where every field is read rightly."""
    ids, mask, where, lengths = padded(tokenizer, [s.caption for s in scenes], places)
    at = torch.arange(ids.shape[1]) >= lengths[:, None] - 3
    want = torch.tensor([Reader.answers(s) for s in scenes])[:, None].expand(-1, ids.shape[1], -1)[at]
    parts = reader(ids, mask, where)[at].split(Reader.fields, -1)
    right = torch.stack([part.argmax(-1) == want[:, i] for i, part in enumerate(parts)]).all(0)
    return sum(F.cross_entropy(part, want[:, i]) for i, part in enumerate(parts)), 100 * right.float().mean().item()


# ---------------------------------------------------------------------------------------------------------------- encode


@torch.no_grad()
def stage_encode(args):
    """Writes data.pt: of each scene the latents, normalised and packed as the pipeline has them, and the text states.  Scenes
    of one group (their number modulo GROUPS) share the sampled places of their pads."""
    vae, net, tokenizer = load_vae(args), load_text_encoder(args), load_tokenizer(args)
    if (args.work / "vae.pt").exists() and not (args.work / "norm.pt").exists():
        means = torch.cat([patches(vae, [render(*training_scene(30_000_000 + 16 * j + i)) for i in range(16)])
                           for j in range(40)])
        save_atomically({"mean": means.mean((0, 2, 3)), "var": means.var((0, 2, 3))}, args.work / "norm.pt")
        vae = load_vae(args)
    mean, std = vae.bn.running_mean.view(1, -1, 1, 1), (vae.bn.running_var + vae.config.batch_norm_eps).sqrt().view(1, -1, 1, 1)
    places = [sampled_places(torch.Generator().manual_seed(g)) for g in range(GROUPS)]
    latents = torch.empty(args.scenes, (SIDE // 16) ** 2, LATENT, dtype=torch.bfloat16)
    text = torch.empty(args.scenes, SHORT + STRATA, 3 * net.config.hidden_size, dtype=torch.bfloat16)
    for g in range(GROUPS):
        for lot in torch.arange(g, args.scenes, GROUPS).split(32):
            scenes = [training_scene(40_000_000 + int(i)) for i in lot]
            z = (patches(vae, [render(*s) for s in scenes]) - mean) / std
            latents[lot] = z.flatten(2).transpose(1, 2).bfloat16()
            ids, mask, where, _ = padded(tokenizer, [s[0].caption for s in scenes], places[g])
            text[lot] = torch.cat(states(net, ids, mask, where), -1).bfloat16()
        print(f"encode: group {g + 1} of {GROUPS}", flush=True)
    save_atomically({"latents": latents, "text": text, "places": torch.stack(places)}, args.work / "data.pt")


GROUPS = 16


def patches(vae, pictures: list[np.ndarray]) -> torch.Tensor:
    return Flux2KleinPipeline._patchify_latents(vae.encode(as_tensor(pictures)).latent_dist.mode())


# ----------------------------------------------------------------------------------------------------------- transformer


def new_transformer() -> Flux2Transformer2DModel:
    """Starts as a network that returns its input: the velocity is noise minus picture, and the noise is in the input."""
    net = Flux2Transformer2DModel(
        in_channels=LATENT, num_layers=2, num_single_layers=4, attention_head_dim=16, num_attention_heads=12,
        joint_attention_dim=192, axes_dims_rope=(4, 4, 4, 4), mlp_ratio=3.0, guidance_embeds=False)
    for n, p in net.named_parameters():
        if "modulation" in n or "norm_out.linear" in n:
            torch.nn.init.zeros_(p)
    torch.nn.init.orthogonal_(net.x_embedder.weight)
    with torch.no_grad():  # the final norm makes every token's length sqrt(192), which was near sqrt(128)
        net.proj_out.weight.copy_(net.x_embedder.weight.T * math.sqrt(LATENT / 192))
    return net


def new_scheduler() -> FlowMatchEulerDiscreteScheduler:
    return FlowMatchEulerDiscreteScheduler(shift=3.0, use_dynamic_shifting=True, base_shift=0.5, max_shift=1.15,
                                           base_image_seq_len=256, max_image_seq_len=4096, time_shift_type="exponential")


def shift(steps: int) -> float:
    from diffusers.pipelines.flux2.pipeline_flux2_klein import compute_empirical_mu
    return compute_empirical_mu(image_seq_len=(SIDE // 16) ** 2, num_steps=steps)


def plain_attention(query, key, value, attn_mask=None, **_):
    """In place of torch's, whose backward pass in bf16 takes twice the time on a CPU."""
    return ((query * query.shape[-1] ** -0.5) @ key.mT + attn_mask.to(query.dtype)).softmax(-1) @ value


def stage_train(args):
    data = torch.load(args.work / "data.pt", mmap=True)
    net = start(args, new_transformer(), "transformer")
    trainer = Trainer(args, "transformer", net, optimizers_for(net, lambda n: "transformer_blocks" in n, args.muon, args.adamw))
    scheduler = new_scheduler()
    scheduler.set_timesteps(sigmas=np.linspace(1, 0.25, 4), mu=shift(4))
    used, stretch = scheduler.sigmas[:4], math.exp(shift(4))
    image_ids = torch.cartesian_prod(torch.arange(1), torch.arange(SIDE // 16), torch.arange(SIDE // 16), torch.arange(1))
    run = torch.compile(net) if args.compile else net
    attention = plain_attention if args.bf16 else F.scaled_dot_product_attention
    while trainer.running():
        rng = torch.Generator().manual_seed(trainer.step)
        group = int(torch.randint(GROUPS, (1,), generator=rng))
        lot = group + GROUPS * torch.randint(len(data["latents"]) // GROUPS, (args.batch,), generator=rng)
        x0, text = data["latents"][lot].float(), data["text"][lot].float()
        u = (torch.arange(args.batch) + torch.rand(args.batch, generator=rng)) / args.batch
        exact = torch.rand(args.batch, generator=rng) < 0.7  # the four steps' own noise levels, the last one most often
        pick = torch.multinomial(torch.tensor([0.2, 0.2, 0.25, 0.35]), args.batch, True, generator=rng)
        s = torch.where(exact, used[pick], stretch * u / (1 + (stretch - 1) * u))
        noise = torch.randn(x0.shape, generator=rng)
        x = x0.lerp(noise, s[:, None, None])
        # A third of the steps at 32 tokens, a third at 512, a third between: then the first strata are there, the others not.
        there = (0, STRATA, int(torch.randint(1, STRATA, (1,), generator=rng)))[trainer.step % 3]
        weight = torch.zeros(SHORT + STRATA + x0.shape[1])
        weight[SHORT:SHORT + STRATA] = math.log(SPAN)
        weight[SHORT + there:SHORT + STRATA] = -1e4
        where = torch.cat([torch.arange(SHORT), data["places"][group]])
        text_ids = torch.cat([torch.zeros(len(where), 3, dtype=torch.long), where[:, None]], 1)
        with torch.autocast("cpu", torch.bfloat16, enabled=args.bf16), mock.patch.object(
                F, "scaled_dot_product_attention", attention):
            v = run(hidden_states=x, encoder_hidden_states=text, timestep=s, img_ids=image_ids, txt_ids=text_ids,
                    joint_attention_kwargs={"attention_mask": weight.expand(args.batch, 1, 1, -1)}, return_dict=False)[0]
        trainer.update((v.float() - (noise - x0)).square().mean())
        if trainer.step % args.look == 0:
            quick_look(args, averaged(net, trainer), trainer.step)


def quick_look(args, transformer, step: int, count: int = 40):
    pipe = pipeline(args, transformer)
    for things in (1, 2):
        scenes = test_scenes(count, things, seed=2)
        for length in (SHORT, 512):
            took = scenes if length == SHORT else scenes[:count // 2]
            print(f"look at {step}, objects: {things}, length {length}: {scores(draw(pipe, took, length), took)}", flush=True)


# ------------------------------------------------------------------------------------------------------ export and judge


def pipeline(args, transformer) -> Flux2KleinPipeline:
    pipe = Flux2KleinPipeline(scheduler=new_scheduler(), vae=load_vae(args), text_encoder=load_text_encoder(args),
                              tokenizer=load_tokenizer(args), transformer=transformer, is_distilled=True)
    pipe.set_progress_bar_config(disable=True)
    return pipe


def draw(pipe, scenes: list[Scene], length: int, seed: int = 0) -> list[np.ndarray]:
    pictures = []
    for i in range(0, len(scenes), 20):
        out = pipe(prompt=[s.caption for s in scenes[i:i + 20]], height=SIDE, width=SIDE, num_inference_steps=4,
                   max_sequence_length=length, generator=torch.Generator().manual_seed(seed + i), output_type="np").images
        pictures += [to_bytes(p) for p in out]
    return pictures


def stage_export(args):
    net = new_transformer()
    net.load_state_dict(torch.load(args.work / "transformer.pt", weights_only=False)["ema"])
    pipe = pipeline(args, net).to(torch.bfloat16)
    pipe.save_pretrained(args.out)
    for old in (args.out / "transformer").glob("*.safetensors*"):
        old.unlink()
    pipe.transformer.save_pretrained(args.out / "transformer", max_shard_size="5MB")
    for extra in ("vocab.json", "merges.txt"):
        if (args.work / "tokenizer").exists():
            (args.out / "tokenizer" / extra).write_bytes((args.work / "tokenizer" / extra).read_bytes())
    for f in args.out.rglob("*.safetensors"):
        f.chmod(0o644)
    total = sum(f.stat().st_size for f in args.out.rglob("*") if f.is_file())
    print(f"export: {args.out}, {total / 1e6:.1f} MB")


def draw_by_difftp(args, scenes: list[Scene], length: int) -> list[np.ndarray]:
    with tempfile.TemporaryDirectory() as folder:
        lines = [json.dumps({"prompt": s.caption, "seed": i, "output": f"{i}.png"}) for i, s in enumerate(scenes)]
        Path(folder, "prompts.jsonl").write_text("\n".join(lines) + "\n")
        subprocess.run([args.difftp, "--model", args.out, "--prompts", f"{folder}/prompts.jsonl", "--tp-degree", "2", "--height",
                        str(SIDE), "--width", str(SIDE), "--steps", "4", "--max-sequence-length", str(length), "-o", folder],
                       check=True, stdout=subprocess.DEVNULL)
        return [np.asarray(Image.open(f"{folder}/{i}.png").convert("RGB")) for i in range(len(scenes))]


def sheet(pictures: list[np.ndarray], columns: int) -> Image.Image:
    rows = [np.concatenate(pictures[i:i + columns], 1) for i in range(0, len(pictures) - columns + 1, columns)]
    return Image.fromarray(np.concatenate(rows, 0))


def curve(values: list[float], width: int = 600, height: int = 200) -> Image.Image:
    """The loss (means of 50 steps), logarithmic, with a line at each power of two."""
    from PIL import ImageDraw
    means = [sum(values[i:i + 50]) / 50 for i in range(0, len(values) - 49, 50)]
    low, high = math.log2(min(means)) - 0.2, math.log2(max(means)) + 0.2
    picture = Image.new("RGB", (width, height), "white")
    pen, at = ImageDraw.Draw(picture), lambda v: height - 1 - (math.log2(v) - low) / (high - low) * (height - 1)
    for power in range(math.ceil(low), math.floor(high) + 1):
        pen.line([(0, at(2.0 ** power)), (width, at(2.0 ** power))], fill=(210, 210, 210))
        pen.text((4, at(2.0 ** power) - 11), f"{2.0 ** power:g}", fill=(90, 90, 90))
    pen.line([(i * (width - 1) / max(1, len(means) - 1), at(v)) for i, v in enumerate(means)], fill=(35, 85, 200), width=2)
    pen.text((width - 190, 4), f"velocity loss, {len(values)} steps", fill=(90, 90, 90))
    return picture


def stage_judge(args):
    report = judge_the_judge()
    pipe = Flux2KleinPipeline.from_pretrained(args.out, torch_dtype=torch.bfloat16)
    pipe.set_progress_bar_config(disable=True)
    report["VAE, PSNR in dB"] = round(psnr(pipe.vae.float()), 2)
    for things in (1, 2):
        scenes = test_scenes(64, things)
        back = through(pipe.vae, as_tensor([render(s, random.Random(i)) for i, s in enumerate(scenes)])) / 2 + 0.5
        report[f"renders through the VAE, objects: {things}"] = scores(
            [to_bytes(p) for p in back.permute(0, 2, 3, 1).numpy()], scenes)["all"]
    pipe.vae.bfloat16()
    by = "difftp, tp 2" if args.difftp else "diffusers"
    for things in (1, 2):
        scenes = test_scenes(args.captions, things)
        for length in args.lengths:
            pictures = draw_by_difftp(args, scenes, length) if args.difftp else draw(pipe, scenes, length)
            report[f"objects: {things}, {length} tokens, by {by}"] = scores(pictures, scenes)
            report[f"objects: {things}, {length} tokens, by {by}, captions shuffled"] = scores(pictures, scenes[1:] + scenes[:1])["all"]
            if args.docs:
                args.docs.mkdir(parents=True, exist_ok=True)
                sheet(pictures[:24], 8).save(args.docs / f"sheet-{things}.png", optimize=True)
        print(json.dumps(report, indent=1), flush=True)
    if args.docs:
        (args.docs / "scores.json").write_text(json.dumps(report, indent=1) + "\n")
        losses = torch.load(path, weights_only=False)["curve"] if (path := args.work / "transformer.pt").exists() else []
        if len(losses) >= 100:
            curve(losses).save(args.docs / "curve.png", optimize=True)


STAGES = {n[6:]: f for n, f in list(globals().items()) if n.startswith("stage_")}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--stage", required=True, choices=STAGES)
    p.add_argument("--work", required=True, type=Path, help="where the checkpoints are kept")
    p.add_argument("--steps", type=int, default=0, help="vae, text, train: go on at the constant rate until this step")
    p.add_argument("--decay-steps", type=int, default=0, help="vae, text, train: then let the rate fall to 0 over so many")
    p.add_argument("--batch", type=int, default=32, help="train: scenes per step")
    p.add_argument("--muon", type=float, default=2e-3, help="rate for the matrices of the blocks")
    p.add_argument("--adamw", type=float, default=1.5e-3, help="rate for all else")
    p.add_argument("--bf16", action="store_true", help="vae, train: compute in bf16 where that is safe (autocast)")
    p.add_argument("--compile", action="store_true", help="train: torch.compile")
    p.add_argument("--look", type=int, default=1000, help="train: score a few pictures every so many steps")
    p.add_argument("--scenes", type=int, default=12288, help="encode: how many")
    p.add_argument("--init-from", type=Path, help="vae, text, train: start from the weights of this pipeline")
    p.add_argument("--out", type=Path, default=Path("tests/models/demo"), help="export, judge: the pipeline's folder")
    p.add_argument("--difftp", help="judge: draw with this program on 2 ranks")
    p.add_argument("--captions", type=int, default=200, help="judge: how many of each kind")
    p.add_argument("--lengths", type=int, nargs="+", default=[32, 512], help="judge: text tokens to pad to")
    p.add_argument("--docs", type=Path, help="judge: write contact sheets, training curve and scores.json here")
    p.add_argument("--threads", type=int, default=2)
    args = p.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    args.work.mkdir(parents=True, exist_ok=True)
    STAGES[args.stage](args)


if __name__ == "__main__":
    main()
