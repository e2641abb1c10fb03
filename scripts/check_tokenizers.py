#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compare difftp's tokenizer with the Python libraries on full-size vocabularies: docs/tokenizers.md.

    pip install mistral-common dashscope tiktoken tokenizers
    make tests && python3 scripts/check_tokenizers.py [--strings 10000] [--seed 1]

tekken (FLUX.2-dev) is the file that mistral-common ships, Qwen's ranks (klein) those that dashscope ships.  Both are converted to
tokenizer.json, as the models' folders have it; random Unicode strings then go through difftp, through tokenizers with that file, and
through tiktoken with the ranks as they are.  Exits 1 on any difference.

    python3 scripts/check_tokenizers.py --freeze FILE --tokenizer DIR [--strings 200] [--seed 1]

writes the first of these strings to FILE with the ids of both libraries for DIR's tokenizer.json, which have to agree: what
tests/test_tokenizer.c reads.  difftp has no part in it.
"""
import argparse
import base64
import importlib.util
import json
import os
import random
import subprocess
import sys
import tempfile

import tiktoken
from tokenizers import Tokenizer, normalizers

QWEN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def shipped(package, *path):
    """A file of an installed package, which is not imported: only its data are wanted."""
    spec = importlib.util.find_spec(package)
    if not spec:
        sys.exit(f"the package {package.replace('_', '-')} is not installed")
    return os.path.join(spec.submodule_search_locations[0], *path)


def byte_chars():
    """The character that stands for each byte in byte-level BPE."""
    keep = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [b for b in range(256) if b not in keep]
    return {**{b: chr(b) for b in keep}, **{b: chr(256 + i) for i, b in enumerate(rest)}}


def merges_of(ranks):
    """Every way in which two tokens make a third, in the order of the thirds, as transformers converts ranks."""
    found = []
    for token, rank in ranks.items():
        splits = [(token[:i], token[i:]) for i in range(1, len(token)) if token[:i] in ranks and token[i:] in ranks]
        found += [(rank, ranks[a], ranks[b], a, b) for a, b in splits]
    return [(a, b) for _, _, _, a, b in sorted(found)]


def convert(folder, ranks, first_id, pattern, normalizer, ignore_merges, specials):
    chars = byte_chars()
    text = lambda token: "".join(chars[b] for b in token)
    data = {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [{"id": i, "content": t, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
                          "special": True} for t, i in specials.items()],
        "normalizer": normalizer,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False},
            {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}]},
        "post_processor": None, "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False},
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
                  "fuse_unk": False, "byte_fallback": False, "ignore_merges": ignore_merges,
                  "vocab": {**({t: i for t, i in specials.items()} if first_id else {}),
                            **{text(t): r + first_id for t, r in ranks.items()}},
                  "merges": [[text(a), text(b)] for a, b in merges_of(ranks)]},
    }
    with open(os.path.join(folder, "tokenizer.json"), "w") as f:
        json.dump(data, f, ensure_ascii=False)


def tekken():
    path = shipped("mistral_common", "data", "tekken_240911.json")
    with open(path) as f:
        data = json.load(f)
    special = data["config"]["default_num_special_tokens"]
    count = data["config"]["default_vocab_size"] - special
    ranks = {base64.b64decode(v["token_bytes"]): v["rank"] for v in data["vocab"][:count]}
    names = {f"<SPECIAL_{i}>": i for i in range(special)}
    return dict(name="tekken", ranks=ranks, first_id=special, pattern=data["config"]["pattern"], normalizer=None,
                ignore_merges=True, specials=names)


def qwen():
    path = shipped("dashscope", "resources", "qwen.tiktoken")
    with open(path, "rb") as f:
        ranks = {base64.b64decode(t): int(r) for t, r in (line.split() for line in f if line.strip())}
    return dict(name="qwen", ranks=ranks, first_id=0, pattern=QWEN, normalizer={"type": "NFC"}, ignore_merges=False,
                specials={"<|endoftext|>": len(ranks)})


WORDS = ["the", " of", "don't", "I'LL", " naïve", "Straße", "日本語", "ไทย", "عربى", "हिन्दी", "\r\n", "\n\n", "  ", "\t", "12345", "🙂", "👩‍👩‍👧",
         "e\u0301", "ſs", "Ω", "\u2028", "\u00a0", "x=1;", "//", "<|", "|>", "[INST"]


def random_text(rng):
    """Words, and characters of every plane but surrogates, also unassigned ones and combining marks."""
    parts = []
    for _ in range(rng.randint(0, 24)):
        kind = rng.random()
        if kind < 0.3:
            parts.append(rng.choice(WORDS))
        elif kind < 0.6:
            parts.append("".join(chr(rng.randint(32, 126)) for _ in range(rng.randint(1, 8))))
        else:
            top = rng.choice([0x250, 0x800, 0x3000, 0xD7FF, 0x10FFFF])
            for _ in range(rng.randint(1, 6)):
                c = rng.randint(1, top)
                parts.append(chr(c) if not 0xD800 <= c <= 0xDFFF else " ")
    return "".join(parts)


def ours(folder, texts):
    tool = os.path.join(os.environ.get("TESTBIN", "build/release/tests"), "tool_tokenize")
    data = b"".join(b"%d\n" % len(t) + t for t in (text.encode() for text in texts))
    out = subprocess.run([tool, folder], input=data, stdout=subprocess.PIPE, check=True).stdout.decode()
    return [[int(i) for i in line.split()] for line in out.split("\n")[:-1]]


def compare(texts, name, library, theirs, who, ids):
    wrong = [(t, a, b) for t, a, b in zip(texts, theirs, ids) if a != b]
    print(f"{name}: {len(texts)} strings, {sum(map(len, theirs))} tokens, {len(wrong)} differ from {library}")
    for text, a, b in wrong[:3]:
        print(f"  {text!r}\n    {library}: {a}\n    {who}: {b}")
    return bool(wrong)


def by_tiktoken(texts, name, ranks, first_id, pattern, normalizer):
    tt = tiktoken.Encoding(name, pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
    # Not by Python's unicodedata, which has the Unicode version of its release.
    normal = [normalizers.NFC().normalize_str(s) if normalizer else s for s in texts]
    return [[i + first_id for i in tt.encode_ordinary(s)] for s in normal]


def freeze(file, folder, texts):
    """True if the libraries differ: nothing is written then."""
    path = os.path.join(folder, "tokenizer.json")
    with open(path) as f:
        data = json.load(f)
    bytes_of = {c: b for b, c in byte_chars().items()}
    added = {t["id"] for t in data["added_tokens"]}
    vocab = {bytes(bytes_of[c] for c in t): i for t, i in data["model"]["vocab"].items() if i not in added}
    first_id = min(vocab.values())
    ids = [e.ids for e in Tokenizer.from_file(path).encode_batch(texts, add_special_tokens=False)]
    theirs = by_tiktoken(texts, folder, {t: i - first_id for t, i in vocab.items()}, first_id,
                         data["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"], data["normalizer"])
    if compare(texts, folder, "tiktoken", theirs, "tokenizers", ids):
        return True
    with open(file, "w") as f:
        for text, row in zip(texts, ids):
            print(json.dumps({"text": text, "ids": row}, ensure_ascii=False, separators=(",", ":")), file=f)
    return False


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--strings", type=int)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--freeze", metavar="FILE")
    p.add_argument("--tokenizer", metavar="DIR")
    a = p.parse_args()
    if bool(a.freeze) != bool(a.tokenizer):
        p.error("--freeze and --tokenizer go together")
    rng = random.Random(a.seed)
    texts = [random_text(rng) for _ in range(a.strings or (200 if a.freeze else 10000))]
    if a.freeze:
        sys.exit(freeze(a.freeze, a.tokenizer, texts))
    failed = False
    for make in (tekken, qwen):
        t = make()
        with tempfile.TemporaryDirectory() as folder:
            convert(folder, t["ranks"], t["first_id"], t["pattern"], t["normalizer"], t["ignore_merges"], t["specials"])
            mine = ours(folder, texts)
            hf = Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))
        ids = [e.ids for e in hf.encode_batch(texts, add_special_tokens=False)]
        failed |= compare(texts, t["name"], "tokenizers", ids, "difftp", mine)
        ids = by_tiktoken(texts, t["name"], t["ranks"], t["first_id"], t["pattern"], t["normalizer"])
        failed |= compare(texts, t["name"], "tiktoken", ids, "difftp", mine)
    sys.exit(failed)


main()
