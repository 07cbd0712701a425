#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the adapters against the real engines: make test-engines.

    run.py BUILD [FILE...]

Makes the engines' environment where it is missing, in a cache folder named by a hash of
requirements.lock: KVT_ENGINES_CACHE, else ~/.cache/kvterrace/engines. It takes 7 GB and some
minutes, once. KVT_ENGINES_ENV names an environment that is there already and is used as it is.
Then runs each test_*.py beside this file in a process of its own, with the package of BUILD.

An engine that cannot be installed is skipped with a message. The last line counts what passed, was
skipped and failed; the exit code is 1 when something failed, or when nothing ran.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
LOCK = os.path.join(HERE, "requirements.lock")
ROOM = 9 << 30  # bytes on the disk before an environment is made
TIMEOUT = 1800
# Engines report their use to hosts outside and ask hubs for models, unless they are told not to.
QUIET = {"VLLM_NO_USAGE_STATS": "1", "LMCACHE_TRACK_USAGE": "false", "DO_NOT_TRACK": "1",
         "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1",
         "PYTHONDONTWRITEBYTECODE": "1"}


def sections():
    """The lock file as {section: [requirement]}, in order."""
    found, name = {}, None
    with open(LOCK, encoding="utf-8") as file:
        for line in map(str.strip, file):
            heading = re.fullmatch(r"# \[(\w+)\]", line)
            if heading:
                name = heading.group(1)
                found[name] = []
            elif line and not line.startswith("#"):
                found[name].append(line)
    return found


def folder():
    with open(LOCK, "rb") as file:
        digest = hashlib.sha256(file.read() + sys.version.split()[0].encode()).hexdigest()[:16]
    cache = os.environ.get("KVT_ENGINES_CACHE") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "kvterrace", "engines")
    return os.path.join(cache, digest)


def last_line(text):
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR")]
    return (errors or lines or ["no reason given"])[-1]


def install(place):
    """Makes or completes the environment; {section: why it is missing}."""
    missing = {}
    wanted = sections()
    done = {name: os.path.join(place, f"installed.{name}") for name in wanted}
    if all(map(os.path.exists, done.values())):
        return missing
    os.makedirs(place, exist_ok=True)
    if shutil.disk_usage(place).free < ROOM and not os.path.exists(done["common"]):
        return dict.fromkeys(wanted, f"{place} has less than {ROOM >> 30} GiB free")
    if not os.path.exists(os.path.join(place, "bin", "pip")):
        subprocess.run([sys.executable, "-m", "venv", place], check=True)
    for name, lines in wanted.items():
        if os.path.exists(done[name]):
            continue
        if "common" in missing:
            missing[name] = missing["common"]
            continue
        print(f"engines: installing {name} ({len(lines)} packages) into {place}", flush=True)
        made = subprocess.run([os.path.join(place, "bin", "pip"), "install", "--quiet",
                               "--disable-pip-version-check", "--no-deps", *lines],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              check=False)
        if made.returncode == 0:
            with open(done[name], "w", encoding="utf-8"):
                pass
        else:
            missing[name] = "cannot be installed: " + last_line(made.stdout)
    return missing


def engine_of(path):
    with open(path, encoding="utf-8") as file:
        found = re.search(r'^ENGINE = "(\w+)"', file.read(), re.M)
    if not found:
        raise SystemExit(f"{path}: no line says ENGINE = \"...\"")
    return found.group(1)


def run(python, path, build):
    """0 passed, 77 skipped, else failed; output goes to the terminal as it comes."""
    environment = dict(os.environ, **QUIET, KVT_BINARY_DIR=build)
    environment["PYTHONPATH"] = os.pathsep.join([os.path.join(build, "python"), HERE,
                                                 os.path.dirname(HERE)])
    process = subprocess.Popen([python, path], env=environment, process_group=0)
    try:
        return process.wait(timeout=TIMEOUT)
    except subprocess.TimeoutExpired:
        print(f"engines: {os.path.basename(path)} did not end within {TIMEOUT} s", flush=True)
        return 1
    finally:
        try:
            os.killpg(process.pid, 9)  # engines start processes of their own
        except ProcessLookupError:
            pass
        process.wait()


def main(build, names):
    build = os.path.abspath(build)
    if not os.path.exists(os.path.join(build, "python", "kvterrace", "_kvt.abi3.so")):
        raise SystemExit("engines: the build has no Python package (make build, with Python 3.11, "
                         "its headers and cffi)")
    place, missing = os.environ.get("KVT_ENGINES_ENV"), {}
    if not place:
        place = folder()
        missing = install(place)
    python, passed, skipped, failed = os.path.join(place, "bin", "python"), [], [], []
    files = sorted(name for name in os.listdir(HERE) if re.fullmatch(r"test_\w+\.py", name))
    for name in files:
        if names and name not in names and name[5:-3] not in names:
            continue
        engine = engine_of(os.path.join(HERE, name))
        if engine in missing:
            print(f"engines: {name} skipped: {engine} {missing[engine]}", flush=True)
            skipped.append(name)
            continue
        print(f"engines: {name}", flush=True)
        began = time.monotonic()
        code = run(python, os.path.join(HERE, name), build)
        said = {0: "passed", 77: "skipped"}.get(code, f"failed ({code})")
        print(f"engines: {name} {said}, {time.monotonic() - began:.0f} s", flush=True)
        {0: passed, 77: skipped}.get(code, failed).append(name)
    said = [f"{len(passed)} passed", f"{len(skipped)} skipped", f"{len(failed)} failed"]
    named = [f"{word}: {', '.join(items)}" for word, items in (("skipped", skipped),
                                                               ("failed", failed)) if items]
    print("engines: " + ", ".join(said) + (f" ({'; '.join(named)})" if named else ""))
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    sys.exit(main(sys.argv[1], sys.argv[2:]))
