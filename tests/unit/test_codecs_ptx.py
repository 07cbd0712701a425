#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The PTX in the tree is of its sources, and every architecture's assembler takes it.

Without NVIDIA's ptxas the architectures are skipped (exit 77): the hashes are compared always.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(SOURCE, "tools"))
sys.dont_write_bytecode = True
import make_ptx  # noqa: E402

ARCHITECTURES = ("sm_80", "sm_89", "sm_90", "sm_100", "sm_120")
REGISTERS_MOST = 128  # two blocks of 256 threads on a multiprocessor
PTX = os.path.join(make_ptx.KERNELS, "ptx")


def check_assembles(ptxas, name, architecture, folder):
    """Why ptxas does not take a text, or it takes too much of the processor; None: it is right."""
    done = subprocess.run([ptxas, "-v", f"-arch={architecture}", os.path.join(PTX, name + ".ptx"),
                           "-o", os.path.join(folder, "cubin")], capture_output=True, text=True)
    if done.returncode != 0:
        return done.stderr.strip()
    registers = [int(number) for number in re.findall(r"Used (\d+) registers", done.stderr)]
    spills = [int(number) for number in re.findall(r"(\d+) bytes spill", done.stderr)]
    if not registers or max(registers) > REGISTERS_MOST:
        return f"{registers} registers"
    return f"spills of {spills} bytes" if not spills or any(spills) else None


def main():
    wrong = []
    stale = [name for name in make_ptx.names() if make_ptx.stated(os.path.join(
        PTX, name + ".ptx"))[0] != make_ptx.source_hash(name)]
    wrong += [f"{name}.ptx is not of its source: make ptx" for name in stale]
    others = sorted(name for name in os.listdir(PTX) if name[:-4] not in make_ptx.names())
    wrong += [f"{name} has no source" for name in others]
    ptxas, nvcc = shutil.which("ptxas"), shutil.which("nvcc")
    with tempfile.TemporaryDirectory() as folder:
        for name in make_ptx.names() if ptxas else ():
            for architecture in ARCHITECTURES:
                why = check_assembles(ptxas, name, architecture, folder)
                if why:
                    wrong.append(f"{name}, {architecture}: {why}")
        for name in make_ptx.names() if nvcc else ():
            path, made = os.path.join(PTX, name + ".ptx"), os.path.join(folder, "made.ptx")
            if make_ptx.stated(path)[1] != make_ptx.nvcc_release(nvcc):
                continue
            make_ptx.make(name, nvcc, made)
            with open(path, "rb") as old, open(made, "rb") as new:
                if old.read() != new.read():
                    wrong.append(f"{name}.ptx is not what nvcc makes of its source: make ptx")
    print("\n".join(wrong) if wrong else f"{len(make_ptx.names())} modules are right")
    if wrong:
        return 1
    if not ptxas:
        print("skipped: no ptxas here, so nothing was assembled")
        return 77
    return 0


if __name__ == "__main__":
    sys.exit(main())
