#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The back end of Mooncake with the real engine: a master and two nodes of PyPI's
mooncake-transfer-engine-non-cuda, reached by tests/support/mooncake_wheel.c. KVT_MOONCAKE_WHEEL
names the folder in which the wheel was unpacked; without it this test is left out.

Usage: test_remote_mooncake_engine.py CONFORM RUN STORE_TEST STORE_RUN LIBRARY_FOLDER [speed|store]
"""

import os
import signal
import socket
import subprocess
import sys
import time

OBJECTS = "64"
BYTES = "262144"
CLIENT_TTL = 5  # seconds after which the master drops a node

NODE = """
import sys, time
sys.path.insert(0, sys.argv[1])
from mooncake.store import MooncakeDistributedStore
store = MooncakeDistributedStore()
print(store.setup("127.0.0.1", "P2PHANDSHAKE", 768 << 20, 16 << 20, "tcp", "", sys.argv[2]),
      flush=True)
while True:
    time.sleep(1)
"""


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Engine:
    """A master and nodes, each a process of its own."""

    def __init__(self, wheel, nodes):
        self.address = f"127.0.0.1:{free_port()}"
        self.processes = []
        self.wheel = wheel
        master = os.path.join(wheel, "mooncake", "mooncake_master")
        os.chmod(master, 0o755)
        self.start([master, f"--rpc_port={self.address.split(':')[1]}", "--rpc_address=127.0.0.1",
                    f"--metrics_port={free_port()}", f"--client_ttl={CLIENT_TTL}"])
        time.sleep(2)
        for _ in range(nodes):
            self.start_node()

    def start_node(self):
        node = self.start([sys.executable, "-c", NODE, self.wheel, self.address])
        assert node.stdout.readline().strip() == b"0", "a node did not start"

    def start(self, command):
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        self.processes.append(process)
        return process

    def close(self):
        for process in reversed(self.processes):
            process.send_signal(signal.SIGCONT)
            process.kill()
            process.wait()


def seconds_of(line):
    return {name: int(value) for name, value in (pair.split("=") for pair in line.split())}


def check_fault(run, environment, wheel, harm, depth):
    """Gets go on while a node is killed or stopped: none is wrong, and none is late."""
    engine = Engine(wheel, 2)
    try:
        command = [run, "faults", engine.address, BYTES, OBJECTS, str(depth), "12"]
        gets = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                env=environment, text=True)
        assert gets.stdout.readline() == "ready\n", "objects could not be put"
        lines = [seconds_of(gets.stdout.readline()) for _ in range(2)]
        assert lines[1]["good"] > 0, lines
        engine.processes[2].send_signal(harm)
        lines += [seconds_of(gets.stdout.readline()) for _ in range(3)]
        if harm == signal.SIGSTOP:  # a stopped one goes on before the master gives it up
            engine.processes[2].send_signal(signal.SIGCONT)
        lines += [seconds_of(line) for line in gets.stdout]
        status = gets.wait()
        for line in lines:
            print(f"{signal.Signals(harm).name} depth={depth}", line)
        assert status == 0 and lines[-1]["wrong"] == 0, f"wrong bytes, or exit status {status}"
        assert lines[-1]["good"] > 0, "nothing is found any more"
        print(f"late_calls={lines[-1]['late']}")
    finally:
        engine.close()


def take_ticks(gets, seconds):
    """The lines of so many seconds."""
    end, lines = time.monotonic() + seconds, []
    while time.monotonic() < end:
        lines.append(seconds_of(gets.stdout.readline()))
    return lines


def share_good(lines):
    good = sum(line["good"] for line in lines)
    return good / max(1, good + sum(line["misses"] for line in lines))


def check_store_fault(run, environment, wheel, harm):
    """A store's gets while a node is stopped for three seconds, or killed and replaced, until the
    master has dropped it."""
    engine = Engine(wheel, 2)
    try:
        gets = subprocess.Popen([run, engine.address, BYTES, OBJECTS, "18"],
                                stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                env=environment, text=True)
        assert gets.stdout.readline() == "ready\n", "entries could not be published"
        before = take_ticks(gets, 2)
        engine.processes[2].send_signal(harm)
        during = take_ticks(gets, 3)
        if harm == signal.SIGSTOP:
            engine.processes[2].send_signal(signal.SIGCONT)
        else:
            engine.start_node()  # in its place, without its objects
            # Until the master drops the old one, its keys take a second each to fail.
            during += take_ticks(gets, CLIENT_TTL + 1 - 3)
        returned = time.monotonic()
        after, used = [], None
        for line in gets.stdout:
            after.append(seconds_of(line))
            # Of a killed node half is gone for good, and missed at once: most gets are of those.
            least = 0.9 if harm == signal.SIGSTOP else 0.05
            if used is None and share_good(after[-1:]) >= least:
                used = time.monotonic() - returned
        status, last = gets.wait(), after[-1]
        late = [lines[-1]["late"] for lines in (before, during, after)]
        print(f"store, {signal.Signals(harm).name}: found {share_good(before):.3f}, "
              f"{share_good(during):.3f} meanwhile, {share_good(after):.3f} afterwards; used again "
              f"after {used if used is None else round(used, 2)} s; timeouts "
              f"{sum(line['timeouts'] for line in before + during + after)}, late {late}, slowest "
              f"{last['slowest_us'] / 1000} ms, wrong {last['wrong']}; local {last['local_good']}, "
              f"late {last['local_late']}")
        assert status == 0 and last["wrong"] == 0, f"wrong bytes, or exit status {status}"
        assert share_good(before) > 0.9, before
        assert used is not None, "nothing is found any more"
    finally:
        engine.close()


def main():
    conform, run, store_test, store_run, folder = sys.argv[1:6]
    only = sys.argv[6] if len(sys.argv) > 6 else None
    wheel = os.environ.get("KVT_MOONCAKE_WHEEL")
    if not wheel or not os.path.exists(os.path.join(folder, "libmooncake_store.so")):
        print("skipped: KVT_MOONCAKE_WHEEL names no wheel, or Python's headers are absent")
        return 77
    environment = dict(os.environ, LD_LIBRARY_PATH=folder, GLOG_minloglevel="2")
    engine = Engine(wheel, 2)
    try:
        environment["KVT_MOONCAKE_MASTER"] = engine.address
        if only != "speed":
            subprocess.run([store_test], env=environment, check=True, timeout=300)
        if only != "store":
            subprocess.run([conform], env=environment, check=True, timeout=300)
        for size in ("262144", "2097152") if only != "store" else ():
            for depth in ("1", "8"):
                subprocess.run([run, "speed", engine.address, size, OBJECTS, depth],
                               env=environment, check=True, timeout=300)
    finally:
        engine.close()
    for harm in (signal.SIGKILL, signal.SIGSTOP) if only != "speed" else ():
        check_store_fault(store_run, environment, wheel, harm)
        if only != "store":
            check_fault(run, environment, wheel, harm, 8)
    return 0


if __name__ == "__main__":
    sys.exit(main())
