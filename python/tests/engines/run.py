#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the adapters against the real engines: make test-engines.

    run.py BUILD [ENGINE or FILE...]

Makes the engines' environment where it is missing, in a cache folder named by a hash of
requirements.lock: KVT_ENGINES_CACHE, else ~/.cache/kvterrace/engines. It takes 7 GB and some
minutes, once; environments of other locks that nobody has used since this one was written are
removed there. KVT_ENGINES_ENV names an environment that is there already and is used as it is.
Then runs each test_*.py beside this file in a process of its own, with the package of BUILD, as
many at once as there are processors, two at most: an engine takes up to 2 GB of memory. What goes
on is said at least once a minute.

An engine that cannot be installed is skipped with a message. The last line counts what passed, was
skipped and failed; the exit code is 1 when something failed, or when nothing ran.
"""

import concurrent.futures
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
LOCK = os.path.join(HERE, "requirements.lock")
ROOM = 9 << 30  # bytes on the disk before an environment is made
TIMEOUT = 7200
SAY_SECONDS = 60.0
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


def remove_unused(place):
    """Removes environments beside `place` that were last used before its lock was written."""
    cache, lock = os.path.dirname(place), os.stat(LOCK).st_mtime
    for name in sorted(os.listdir(cache)):
        other = os.path.join(cache, name)
        if other == place or not re.fullmatch("[0-9a-f]{16}", name) or \
                not os.path.exists(os.path.join(other, "pyvenv.cfg")):
            continue
        marks = [os.path.join(other, mark) for mark in ("used", "installed.common", "pyvenv.cfg")]
        if max(os.stat(mark).st_mtime for mark in marks if os.path.exists(mark)) < lock:
            print(f"engines: removing {other}, of another lock and unused since", flush=True)
            shutil.rmtree(other, ignore_errors=True)


def wait_saying(process, output, what, seconds=None):
    """The exit code of a process, None after so many seconds; what it said last is printed once a
    minute."""
    began = said = time.monotonic()
    while True:
        try:
            return process.wait(timeout=1.0)
        except subprocess.TimeoutExpired:
            now = time.monotonic()
        if seconds is not None and now - began > seconds:
            return None
        if now - said >= SAY_SECONDS:
            said = now
            size = os.fstat(output.fileno()).st_size
            tail = os.pread(output.fileno(), 4096, max(size - 4096, 0)).decode(errors="replace")
            lines = [line.strip() for line in tail.splitlines() if line.strip()]
            print(f"engines: {what}: {now - began:.0f} s"
                  + (f", {lines[-1][:120]}" if lines else ""), flush=True)


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
        with tempfile.TemporaryFile() as output:
            made = subprocess.Popen([os.path.join(place, "bin", "pip"), "install",
                                     "--disable-pip-version-check", "--progress-bar", "off",
                                     "--no-deps", *lines],
                                    stdout=output, stderr=subprocess.STDOUT)
            code = wait_saying(made, output, f"installing {name}")
            output.seek(0)
            text = output.read().decode(errors="replace")
        if code == 0:
            with open(done[name], "w", encoding="utf-8"):
                pass
        else:
            missing[name] = "cannot be installed: " + last_line(text)
    return missing


def engine_of(path):
    with open(path, encoding="utf-8") as file:
        found = re.search(r'^ENGINE = "(\w+)"', file.read(), re.M)
    if not found:
        raise SystemExit(f"{path}: no line says ENGINE = \"...\"")
    return found.group(1)


def run(python, path, build):
    """0 passed, 77 skipped, else failed. The output goes to the terminal at the end, so that files
    which run at once do not mix."""
    name, began = os.path.basename(path), time.monotonic()
    print(f"engines: {name}", flush=True)
    environment = dict(os.environ, **QUIET, KVT_BINARY_DIR=build)
    environment["PYTHONPATH"] = os.pathsep.join([os.path.join(build, "python"), HERE,
                                                 os.path.dirname(HERE)])
    with tempfile.TemporaryFile() as output:  # a pipe stays open as long as an engine's process
        process = subprocess.Popen([python, path], env=environment, process_group=0, stdout=output,
                                   stderr=subprocess.STDOUT)
        late = ""
        try:
            code = wait_saying(process, output, name, TIMEOUT)
            if code is None:
                code, late = 1, f"engines: {name} did not end within {TIMEOUT} s\n"
        finally:
            try:
                os.killpg(process.pid, 9)  # engines start processes of their own
            except ProcessLookupError:
                pass
            process.wait()
        output.seek(0)
        said = output.read().decode(errors="replace") + late
    word = {0: "passed", 77: "skipped"}.get(code, f"failed ({code})")
    print(f"{said}engines: {name} {word}, {time.monotonic() - began:.0f} s", flush=True)
    return code


def main(build, names):
    build = os.path.abspath(build)
    if not os.path.exists(os.path.join(build, "python", "kvterrace", "_kvt.abi3.so")):
        raise SystemExit("engines: the build has no Python package (make build, with Python 3.11, "
                         "its headers and cffi)")
    place, missing, began = os.environ.get("KVT_ENGINES_ENV"), {}, time.monotonic()
    if not place:
        place = folder()
        os.makedirs(place, exist_ok=True)
        remove_unused(place)
        missing = install(place)
        with open(os.path.join(place, "used"), "w", encoding="utf-8"):
            pass
    python, passed, skipped, failed = os.path.join(place, "bin", "python"), [], [], []
    files = []
    for name in sorted(name for name in os.listdir(HERE) if re.fullmatch(r"test_\w+\.py", name)):
        engine = engine_of(os.path.join(HERE, name))
        if names and not {name, name[5:-3], engine} & set(names):
            continue
        if engine in missing:
            print(f"engines: {name} skipped: {engine} {missing[engine]}", flush=True)
            skipped.append(name)
            continue
        files.append(name)
    files.sort(key=lambda name: name != "test_vllm.py")  # the longest one first
    with concurrent.futures.ThreadPoolExecutor(min(2, os.cpu_count() or 1)) as pool:
        codes = pool.map(lambda name: run(python, os.path.join(HERE, name), build), files)
    for name, code in zip(files, codes):
        {0: passed, 77: skipped}.get(code, failed).append(name)
    said = [f"{len(passed)} passed", f"{len(skipped)} skipped", f"{len(failed)} failed"]
    named = [f"{word}: {', '.join(items)}" for word, items in (("skipped", skipped),
                                                               ("failed", failed)) if items]
    print("engines: " + ", ".join(said) + (f" ({'; '.join(named)})" if named else "")
          + f", {(time.monotonic() - began) / 60:.0f} minutes")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    sys.exit(main(sys.argv[1], sys.argv[2:]))
