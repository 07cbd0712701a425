#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the PTX that the library carries of the kernels' sources.

    tools/make_ptx.py [--check] [--nvcc NVCC] [--out FOLDER]

Each codecs/kernels/NAME.cu becomes ptx/NAME.ptx beside it, for compute capability 8.0 and up. The
first line names the hash of the source with the headers that it includes and the nvcc. nvcc 13
writes PTX 9.0, which drivers before 580 refuse: the line becomes 7.0, hints of later versions go,
and a test assembles it.

--check only compares hashes, for which no nvcc is needed; exit 1 when one differs.
"""

import argparse
import hashlib
import os
import re
import subprocess
import sys

SOURCE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
KERNELS = os.path.join(SOURCE, "codecs", "kernels")
ARCHITECTURE = "compute_80"
PTX_VERSION = "7.0"  # drivers 450 and later
FLAGS = ["-ptx", f"-arch={ARCHITECTURE}", "-fmad=false", "-O3"]
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.M)


def names():
    return sorted(name[:-3] for name in os.listdir(KERNELS) if name.endswith(".cu"))


def source_hash(name):
    """SHA-256 of a source and of the headers of its folder that it includes, in their order."""
    digest = hashlib.sha256()
    waiting, seen = [name + ".cu"], set()
    while waiting:
        file = waiting.pop(0)
        if file in seen:
            continue
        seen.add(file)
        with open(os.path.join(KERNELS, file), encoding="utf-8") as opened:
            text = opened.read()
        digest.update(text.encode())
        waiting += [included for included in INCLUDE.findall(text)
                    if os.path.exists(os.path.join(KERNELS, included))]
    return digest.hexdigest()


def nvcc_release(nvcc):
    """Such as V13.0.88."""
    said = subprocess.run([nvcc, "--version"], check=True, capture_output=True, text=True).stdout
    return re.search(r"\bV[0-9.]+", said).group(0)


def make(name, nvcc, target):
    made = subprocess.run([nvcc, *FLAGS, os.path.join(KERNELS, name + ".cu"), "-o", "-"],
                          check=True, capture_output=True, text=True).stdout
    lines = [line for line in made.splitlines()
             if line and not line.startswith("//") and "used_bytes_mask" not in line]
    text = re.sub(r"^\.version .*$", f".version {PTX_VERSION}", "\n".join(lines) + "\n",
                  count=1, flags=re.M)
    text = re.sub(r"_INTERNAL_[0-9a-f]{8}_", "_INTERNAL_00000000_", text)  # a hash of the path
    with open(target, "w", encoding="utf-8") as opened:
        opened.write(f"// source {source_hash(name)} nvcc {nvcc_release(nvcc)}\n{text}")


def stated(path):
    """The hash and the nvcc in a file's first line."""
    with open(path, encoding="utf-8") as opened:
        words = opened.readline().split()
    return (words[2], words[4]) if len(words) == 5 and words[1] == "source" else (None, None)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--nvcc", default="nvcc")
    parser.add_argument("--out", default=os.path.join(KERNELS, "ptx"))
    arguments = parser.parse_args()
    stale = [name for name in names()
             if not os.path.exists(os.path.join(arguments.out, name + ".ptx"))
             or stated(os.path.join(arguments.out, name + ".ptx"))[0] != source_hash(name)]
    if arguments.check:
        for name in stale:
            print(f"codecs/kernels/ptx/{name}.ptx is not of its source: make ptx")
        return 1 if stale else 0
    os.makedirs(arguments.out, exist_ok=True)
    for name in names():
        make(name, arguments.nvcc, os.path.join(arguments.out, name + ".ptx"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
