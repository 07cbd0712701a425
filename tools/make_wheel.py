#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""make_wheel.py BUILD VERSION: packs BUILD/python/kvterrace and the command BUILD/kvterrace into
BUILD/wheels-raw/kvterrace-VERSION-cp311-abi3-linux_ARCH.whl. Nothing is compiled: what lies in the
build is what goes in. tools/make_wheel.sh puts the libraries beside them afterwards."""

import base64
import hashlib
import os
import platform
import shutil
import sys
import zipfile

METADATA = """Metadata-Version: 2.1
Name: kvterrace
Version: {version}
Summary: KV-cache store for LLM serving: the library kvterrace from Python, and its command
License: Apache-2.0
Classifier: Operating System :: POSIX :: Linux
Classifier: Programming Language :: Python :: 3.11
Classifier: Typing :: Typed
Requires-Python: >=3.11
Requires-Dist: cffi>=1.15
Description-Content-Type: text/markdown

{readme}"""
WHEEL = """Wheel-Version: 1.0
Generator: kvterrace
Root-Is-Purelib: false
Tag: cp311-abi3-linux_{arch}
"""
ENTRY_POINTS = """[console_scripts]
kvterrace = kvterrace.__main__:main
"""


def files_of(build, top):
    """Names in the wheel with the files that are meant."""
    package = os.path.join(build, "python", "kvterrace")
    found = {f"kvterrace/{name}": os.path.join(package, name)
             for name in sorted(os.listdir(package))
             if name.endswith((".py", ".pyi", ".abi3.so", "py.typed"))}
    found["kvterrace/_command/kvterrace"] = os.path.join(build, "kvterrace")
    for name in ("LICENSE", "NOTICE"):
        found[f"kvterrace/{name}"] = os.path.join(top, name)
    return found


def pack(build, version):
    top = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    arch, folder = platform.machine(), os.path.join(build, "wheels-raw")
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    info, record = f"kvterrace-{version}.dist-info", []
    with open(os.path.join(top, "README.md"), encoding="utf-8") as file:
        texts = {"METADATA": METADATA.format(version=version, readme=file.read()),
                 "WHEEL": WHEEL.format(arch=arch), "entry_points.txt": ENTRY_POINTS}
    path = os.path.join(folder, f"kvterrace-{version}-cp311-abi3-linux_{arch}.whl")

    def add(wheel, name, data, mode):
        entry = zipfile.ZipInfo(name, (2026, 1, 1, 0, 0, 0))
        entry.external_attr, entry.compress_type = (0o100000 | mode) << 16, zipfile.ZIP_DEFLATED
        wheel.writestr(entry, data)
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        record.append(f"{name},sha256={digest},{len(data)}")

    with zipfile.ZipFile(path, "w") as wheel:
        for name, source in files_of(build, top).items():
            with open(source, "rb") as file:
                add(wheel, name, file.read(), 0o755 if os.access(source, os.X_OK) else 0o644)
        for name, text in texts.items():
            add(wheel, f"{info}/{name}", text.encode(), 0o644)
        record.append(f"{info}/RECORD,,")
        wheel.writestr(f"{info}/RECORD", "\n".join(record) + "\n")
    return path


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    print(pack(sys.argv[1], sys.argv[2]))
