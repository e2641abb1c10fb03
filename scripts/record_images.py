#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes tests/images: small image files of every kind that is read, what diffusers' load_image makes of each (the tensors of
expected.safetensors, u8 [h, w, 3]), and files that are refused (bad_*).  Needs diffusers, Pillow, numpy and safetensors:

    python scripts/record_images.py tests/images
"""
import struct
import sys
import zlib
from pathlib import Path

import numpy as np
from diffusers.utils import load_image
from PIL import Image, PngImagePlugin
from safetensors.numpy import save_file

OUT = Path(sys.argv[1])
RANDOM = np.random.default_rng(20)
H, W = 29, 43


def chunk(name, data):
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def png(name, width, height, bits, colour, rows, before=b"", after=b"", interlace=0):
    """A PNG of kinds that Pillow does not write."""
    head = struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, interlace)
    (OUT / name).write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + before + chunk(b"IDAT", zlib.compress(rows)) + after +
                             chunk(b"IEND", b""))


def plain_rows(a):
    return b"".join(b"\0" + row.tobytes() for row in a)


def interlaced_rows(a):
    passes = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))
    return b"".join(plain_rows(a[y::dy, x::dx]) for x, y, dx, dy in passes)


def exif(orientation):
    e = Image.Exif()
    e[0x010F] = "a maker"
    e[0x0112] = orientation
    return e


def xmp(orientation):
    return f'<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf tiff:Orientation="{orientation}"/></x:xmpmeta>'.encode()


y, x = np.mgrid[0:H, 0:W]
rgb = np.stack([np.sin(x / 9) * 90 + 128, np.cos(y / 7) * 90 + 128, (x * y) % 256], -1) + RANDOM.normal(0, 8, (H, W, 3))
rgb = rgb.clip(0, 255).astype(np.uint8)
image = Image.fromarray(rgb)
rgba = Image.fromarray(np.dstack([rgb, RANDOM.integers(0, 256, (H, W), dtype=np.uint8)]))
grey16 = RANDOM.integers(0, 700, (H, W)).astype(np.uint16)
OUT.mkdir(parents=True, exist_ok=True)

for mode in ("RGB", "L", "1"):
    image.convert(mode).save(OUT / f"mode_{mode}.png")
rgba.save(OUT / "mode_RGBA.png")
rgba.convert("LA").save(OUT / "mode_LA.png")
image.quantize(100).save(OUT / "palette.png", transparency=bytes(range(100)))
for bits in (1, 2, 4):
    image.quantize(2**bits).save(OUT / f"palette_{bits}.png", bits=bits, transparency=1)
    png(f"grey_{bits}.png", W, H, bits, 0, b"".join(b"\0" + RANDOM.bytes((W * bits + 7) // 8) for _ in range(H)))
png("palette_short.png", W, H, 8, 3, plain_rows(RANDOM.integers(0, 256, (H, W), dtype=np.uint8)), chunk(b"PLTE", RANDOM.bytes(30)))
png("deep_grey.png", W, H, 16, 0, plain_rows(grey16.astype(">u2")))
png("deep_grey_interlaced.png", W, H, 16, 0, interlaced_rows(grey16.astype(">u2")), interlace=1)
png("deep_grey_alpha.png", W, H, 16, 4, plain_rows(RANDOM.integers(0, 65536, (H, W, 2)).astype(">u2")))
png("deep_rgb.png", W, H, 16, 2, plain_rows(RANDOM.integers(0, 65536, (H, W, 3)).astype(">u2")))
png("deep_rgba.png", W, H, 16, 6, plain_rows(RANDOM.integers(0, 65536, (H, W, 4)).astype(">u2")))
png("interlaced.png", W, H, 8, 2, interlaced_rows(rgb), interlace=1)
png("transparent_colour.png", W, H, 8, 2, plain_rows(rgb), chunk(b"tRNS", struct.pack(">HHH", *rgb[0, 0])))
png("gamma.png", W, H, 8, 2, plain_rows(rgb), chunk(b"gAMA", struct.pack(">I", 100000)))
png("exif_after_the_picture.png", W, H, 8, 2, plain_rows(rgb), after=chunk(
    b"eXIf", b"MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0"))
png("exif_long.png", W, H, 8, 2, plain_rows(rgb), chunk(
    b"eXIf", b"II*\0\x08\0\0\0\x01\0\x12\x01\x04\0\x01\0\0\0\x08\0\0\0\0\0\0\0"))
info = PngImagePlugin.PngInfo()
info.add_itxt("XML:com.adobe.xmp", xmp(3).decode())
image.save(OUT / "xmp.png", pnginfo=info)

for name, options in (("444", dict(subsampling=0)), ("422", dict(subsampling=1)), ("420", dict(subsampling=2)),
                      ("progressive", dict(progressive=True)), ("restarts", dict(restart_marker_blocks=3)),
                      ("stored_as_rgb", dict(keep_rgb=True)), ("xmp", dict(xmp=xmp(6)))):
    image.save(OUT / f"{name}.jpg", quality=88, **options)
image.convert("L").save(OUT / "grey.jpg")
for n in range(0, 10):
    image.save(OUT / f"orientation_{n}.jpg", exif=exif(n))
image.save(OUT / "both_say.jpg", exif=exif(2), xmp=xmp(6))
image.save(OUT / "orientation_5.png", exif=exif(5))

image.save(OUT / "lossy.webp", quality=70)
image.save(OUT / "lossless.webp", lossless=True)
rgba.save(OUT / "lossy_alpha.webp", quality=70)
rgba.save(OUT / "lossless_alpha.webp", lossless=True, exact=True)
image.save(OUT / "orientation_7.webp", exif=exif(7))
image.save(OUT / "xmp.webp", xmp=xmp(8))

good = sorted(p for p in OUT.iterdir() if p.suffix != ".safetensors" and not p.name.startswith("bad_"))
save_file({p.name: np.array(load_image(str(p))) for p in good}, OUT / "expected.safetensors")

tiny = image.resize((16, 16))
tiny.convert("CMYK").save(OUT / "bad_cmyk.jpg")
tiny.save(OUT / "bad_animated.webp", save_all=True, append_images=[tiny.rotate(90)])
tiny.save(OUT / "bad_animated.png", save_all=True, append_images=[tiny.rotate(90)])
print(f"{len(good)} files, and 3 bad ones")
