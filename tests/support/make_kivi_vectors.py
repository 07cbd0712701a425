#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes tests/support/kivi_vectors.bin: KIVI's quantizer in another library's fp16 arithmetic.

    make_kivi_vectors.py [OUTPUT]

Needs PyTorch. Every operation below is one fp16 tensor operation on the CPU, in the order in which
the published quantizer has them: maximum - minimum, division by the largest code, element -
minimum,
division by the scale, clamp, rounding half to even; and for the values fp16 multiplication, then
fp16 addition. Inputs: gaussian, one channel in eight 100 times larger, few distinct values (ties),
subnormal values, and ranges close to the largest. Groups that are constant are left to the unit
test: the published code divides zero by zero there.

The file, little-endian: "KIVIVEC1", u32 count; per case u32 side (0 K, 1 V), bits, group, tokens,
kv_heads, head_dim; then fp16 input [tokens][width]; fp16 minima and scales, in the order of
docs/FORMAT.md; u8 codes [tokens][width]; fp16 values [tokens][width]. Its SHA-256 is in
kivi_vectors.sha256.
"""

import hashlib
import pathlib
import struct
import sys

import torch

CASES = [
    # side, bits, group, tokens, kv_heads, head_dim
    *[(0, bits, group, tokens, 2, 8) for bits in (2, 4, 8) for group, tokens in
      ((32, 32), (32, 64), (64, 64), (128, 128), (32, 47), (64, 31))],
    *[(1, bits, group, 3, 2, dim) for bits in (2, 4, 8) for group, dim in
      ((32, 64), (64, 64), (64, 128), (128, 128), (32, 96), (64, 80), (128, 256))],
    (0, 4, 64, 64, 1, 64),
    (1, 2, 32, 64, 1, 64),
]


def quantize(group, bits):
    """Minimum, scale, codes and values of one group, a 1-D fp16 tensor."""
    top = 2**bits - 1
    low = group.min()
    scale = (group.max() - low) / top
    codes = ((group - low) / scale).clamp(0, top).round()
    return low, scale, codes, codes * scale + low


def groups_of(side, group, tokens, heads, dim):
    """Index tensors of the groups, in the order of the metadata."""
    width = heads * dim
    place = torch.arange(tokens * width).reshape(tokens, width)
    if side == 0:
        for start in range(0, tokens, group):
            for channel in range(width):
                yield place[start : start + group, channel]
        return
    for token in range(tokens):
        for head in range(heads):
            row = place[token, head * dim : (head + 1) * dim]
            for start in range(0, dim, group):
                yield row[start : start + group]


def make_input(number, bits, tokens, width, generator):
    x = torch.randn(tokens, width, generator=generator)
    kind = number % 5
    if kind == 1:
        x[:, ::8] *= 100
    elif kind == 2:
        x = torch.randint(0, 31, (tokens, width), generator=generator).float() / 2
    elif kind == 3:
        x *= 2.0**-13 if bits == 8 else 2.0**-20
    elif kind == 4:
        x = (x * 9000).clamp(-32000, 32000)
    return x.half()


def pack(tensor):
    return tensor.contiguous().numpy().tobytes()


def main():
    here = pathlib.Path(__file__).parent
    output = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else here / "kivi_vectors.bin"
    generator = torch.Generator().manual_seed(20240601)
    blob = bytearray(b"KIVIVEC1" + struct.pack("<I", len(CASES)))
    for number, case in enumerate(CASES):
        side, bits, group, tokens, heads, dim = case
        x = make_input(number, bits, tokens, heads * dim, generator).reshape(-1)
        codes = torch.zeros(x.numel(), dtype=torch.uint8)
        values = torch.zeros_like(x)
        minima, scales = [], []
        for index in groups_of(side, group, tokens, heads, dim):
            low, scale, group_codes, group_values = quantize(x[index], bits)
            if scale == 0:
                raise SystemExit(f"case {number}: a group is constant")
            minima.append(low)
            scales.append(scale)
            codes[index] = group_codes.to(torch.uint8)
            values[index] = group_values
        blob += struct.pack("<6I", *case)
        for part in (x, torch.stack(minima), torch.stack(scales), codes, values):
            blob += pack(part)
    output.write_bytes(blob)
    digest = hashlib.sha256(blob).hexdigest()
    output.with_suffix(".sha256").write_text(f"{digest}  {output.name}\n")


if __name__ == "__main__":
    main()
