#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Four hosts over a Redis cluster of three masters and three replicas, with TLS and ACL users, each
in a network namespace of its own, while something fails: one row for each fault.

    lab/hosts.py [--build build] [--row NAME]... [--json FILE]

Prints one JSON document. Of each row: wrong (bytes), late (calls past their deadline), p99_ratio
(local gets during the fault beside those before it) and used_again_seconds (from the end of the
fault until gets come from the engine as before), with what gets, puts, a clear and the counters did
meanwhile. Needs root, `ip`, `openssl` and Redis. Namespaces, servers and files end with it.
"""
import argparse
import contextlib
import ctypes
import fcntl
import hashlib
import heapq
import json
import os
import random
import select
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time

import servers

MASTERS, HOSTS = 3, 4
ENTRY, HOT, RATE = 98304, 32, 10  # bytes; entries that stay local; puts a second and host
ASKED = 80  # the shared entries that gets choose from: a host's latest ones
GRACE = 0.02  # that the return of a call may take beyond its deadline
BIN = 0.25  # seconds over which the engine's use is looked at
CLONE_NEWNET, TUNSETIFF, IFF_TUN_NO_PI = 0x40000000, 0x400454CA, 0x1001
LIBC = ctypes.CDLL(None, use_errno=True)
RIGHTS = ("~kvt1:*", "resetchannels", "-@all", "+get", "+set", "+exists", "+unlink", "+hello",
          "+auth", "+ping", "+cluster|slots", "+asking", "+client|tracking", "+info")
PASSWORD = "the-hosts-first-password"
PORT, BUS = 6379, 16379


def run(*words, **rest):
    subprocess.run([str(word) for word in words], check=True, stdin=subprocess.DEVNULL, **rest)


# ---- the network: a process that forwards packets between the namespaces ----

def wire(ports):
    """Forwards packets between tunnels, {address: descriptor}, until its input ends. Lines of its
    input are rules: [[from, to, {cut, loss, delay}]...], which replace all that were before."""
    poll, rules, held = select.epoll(), {}, []
    by_address = {bytes(int(part) for part in address.split(".")): (address, fd)
                  for address, fd in ports.items()}
    names = {fd: address for address, fd in ports.items()}
    draw, number, rest = random.Random(1), 0, b""
    for fd in (0, *names):
        os.set_blocking(fd, False)
        poll.register(fd, select.EPOLLIN)

    def give(fd, packet):
        with contextlib.suppress(BlockingIOError, OSError):
            os.write(fd, packet)

    while True:
        wait = max(0.0, held[0][0] - time.monotonic()) if held else -1
        for fd, _ in poll.poll(wait):
            if fd == 0:
                more = os.read(0, 65536)
                if not more:
                    return
                *lines, rest = (rest + more).split(b"\n")
                for line in lines:
                    rules = {(one[0], one[1]): one[2] for one in json.loads(line)}
                    print("done", flush=True)
                continue
            for _ in range(64):
                try:
                    packet = os.read(fd, 65536)
                except BlockingIOError:
                    break
                address, to = by_address.get(packet[16:20], (None, None))
                if to is None:
                    continue
                rule = rules.get((names[fd], address)) if rules else None
                if rule is None:
                    give(to, packet)
                    continue
                if rule.get("cut") or draw.random() < rule.get("loss", 0):
                    continue
                number += 1
                heapq.heappush(held, (time.monotonic() + rule.get("delay", 0), number, to, packet))
        now = time.monotonic()
        while held and held[0][0] <= now:
            give(*heapq.heappop(held)[2:])


class Place:
    """A network namespace with an address; it goes with the process that holds it."""

    def __init__(self, address):
        self.address = address
        self.holder = subprocess.Popen(["sleep", "infinity"], preexec_fn=self.make)
        self.namespace = os.open(f"/proc/{self.holder.pid}/ns/net", os.O_RDONLY)
        home = os.open("/proc/self/ns/net", os.O_RDONLY)
        self.enter()
        try:
            self.tunnel = os.open("/dev/net/tun", os.O_RDWR)
            fcntl.ioctl(self.tunnel, TUNSETIFF, struct.pack("16sH22x", b"t0", IFF_TUN_NO_PI))
            run("ip", "link", "set", "lo", "up")
            run("ip", "address", "add", f"{address}/24", "dev", "t0")
            run("ip", "link", "set", "t0", "mtu", 9000, "txqueuelen", 10000, "up")
        finally:
            LIBC.setns(home, CLONE_NEWNET)
            os.close(home)

    @staticmethod
    def make():
        servers.dies_with_parent()
        if LIBC.unshare(CLONE_NEWNET) != 0:
            os._exit(1)

    def enter(self):
        if LIBC.setns(self.namespace, CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), "setns")

    def within(self):
        """Of a process that is to run here."""
        self.enter()
        servers.dies_with_parent()

    def end(self):
        os.close(self.tunnel)
        os.close(self.namespace)
        self.holder.kill()
        self.holder.wait()


# ---- the engine ----

class Node(servers.Server):
    """A server in a namespace, which its hosts reach by TLS alone."""

    login, patience = ("AUTH", "admin", "admin"), 20

    def __init__(self, folder, number, place):
        self.place, self.host, self.port, self.bus = place, place.address, PORT, BUS
        here = os.path.join(folder, "tls")
        users = ["--user", "admin", "on", ">admin", "~*", "&*", "+@all", "--user", "kvt", "on",
                 ">" + PASSWORD, *RIGHTS, "--user", "default", "off"]
        super().__init__(folder, number, True, False, [
            "--port", 0, "--tls-port", PORT, "--tls-cluster", "yes", "--tls-replication", "yes",
            "--tls-auth-clients", "no", "--tls-cert-file", here + "/cert", "--tls-key-file",
            here + "/key", "--tls-ca-cert-file", here + "/ca", "--masteruser", "admin",
            "--masterauth", "admin", "--repl-diskless-sync-delay", 0, *users])

    def enter(self):
        self.place.within()

    def tell(self, *words):
        answer = self.ask(*words)
        if answer is None or answer.startswith(("ERR", "NO", "WRONG")):
            raise RuntimeError(f"{self.host}: {words[:4]}: {answer}")
        return answer


class Cluster(servers.Servers):
    def __init__(self, folder, places):
        self.folder, self.cluster = folder, True
        self.nodes = [Node(folder, i, place) for i, place in enumerate(places)]
        self.serves = all(node.launch() for node in self.nodes)
        every, self.nodes = self.nodes, self.nodes[:MASTERS]
        self.serves = self.serves and self.join() and self.wait()
        self.nodes = every
        if not self.serves:
            raise RuntimeError("the masters do not serve")
        for node in every[MASTERS:]:
            node.tell("CLUSTER", "MEET", every[0].host, PORT, BUS)
        for i, node in enumerate(every[MASTERS:]):
            self.until(lambda node=node: "cluster_known_nodes:6" in node.ask("CLUSTER", "INFO"), 20)
            master = every[i].tell("CLUSTER", "MYID")
            self.until(lambda node=node, master=master:
                       node.ask("CLUSTER", "REPLICATE", master) == "OK", 20)
            self.until(lambda node=node: "master_link_status:up" in node.ask("INFO"), 20)

    @staticmethod
    def until(true, seconds):
        end = time.monotonic() + seconds
        while not true():
            if time.monotonic() > end:
                raise RuntimeError("the cluster does not get there in time")
            time.sleep(0.02)

    def alive(self):
        return [node for node in self.nodes if node.process.poll() is None]

    def masters(self):
        return [node for node in self.alive() if "role:master" in (node.ask("INFO") or "")]

    def whole(self):
        """Whether all nodes see all slots served."""
        return all("cluster_state:ok" in text and f"cluster_slots_ok:{servers.SLOTS}" in text
                   for text in (node.ask("CLUSTER", "INFO") or "" for node in self.alive()))

    def settled(self):
        """Whether all nodes run, agree, and follow whom they should."""
        return len(self.alive()) == 2 * MASTERS and self.whole() and all(
            "role:master" in text or "master_link_status:up" in text
            for text in (node.ask("INFO") or "" for node in self.nodes))

    def set(self, name, value):
        for node in self.alive():
            node.tell("CONFIG", "SET", name, value)

    def drop_clients(self):
        for node in self.alive():
            node.tell("CLIENT", "KILL", "USER", "kvt")


def certificates(folder, addresses):
    """ca, key, cert, and expired, which has a life of no day."""
    os.mkdir(folder)
    names = ",".join("IP:" + address for address in addresses)
    with open(folder + "/names", "w", encoding="ascii") as file:
        file.write(f"subjectAltName={names}\n")

    def openssl(*words):
        run("openssl", *words, cwd=folder, stderr=subprocess.DEVNULL)

    openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", 30, "-keyout", "ca.key",
            "-out", "ca", "-subj", "/CN=kvterrace-hosts")
    openssl("req", "-newkey", "rsa:2048", "-nodes", "-keyout", "key", "-out", "request", "-subj",
            "/CN=kvterrace-engine")
    for name, days in (("cert", 30), ("expired", 0)):
        openssl("x509", "-req", "-in", "request", "-CA", "ca", "-CAkey", "ca.key", "-days", days,
                "-extfile", "names", "-out", name)


# ---- a host: a process with one store, which gets and puts until it is told to stop ----

def key_of(kind, host, number):
    return struct.pack(">Q", 7 + kind) + hashlib.sha256(b"%d %d %d" % (kind, host, number)).digest(
        )[:24]


def bytes_of(key, size=ENTRY):
    block = hashlib.shake_256(key).digest(4096)
    return block * (size // 4096)


class Host:
    def __init__(self, options):
        import kvterrace  # pylint: disable=import-outside-toplevel
        sys.setswitchinterval(0.0005)
        self.number, self.began = options["number"], options["began"]
        self.deadline = options["deadline"]
        self.store = kvterrace.Store(settings=options["settings"])
        self.ends, self.events, self.wrong, self.beats = False, [], 0, []
        for i in range(HOT):
            key = key_of(0, self.number, i)
            self.store.put(key, bytes_of(key, 65536), recompute_seconds=1.0)
        self.threads = [threading.Thread(target=each) for each in
                        (self.get_hot, self.share, self.beat)]
        for thread in self.threads:
            thread.start()

    def beat(self):
        """How late this process's threads are, whatever the store does."""
        while not self.ends:
            began = time.monotonic()
            time.sleep(0.002)
            late = time.monotonic() - began - 0.002
            if late > 0.001:
                self.beats.append((began, late))

    def get(self, kind, key, size, deadline=None):
        """One get, which counts as an event: (when, kind, seconds, how)."""
        target, info = bytearray(size), {}
        began = time.monotonic()
        hit = self.store.get_into(key, target, info=info, deadline=deadline)
        seconds = time.monotonic() - began
        tier = info.get("tier") if hit else "timeout" if info.get("timed_out") else "miss"
        if hit and target != bytes_of(key, size):
            self.wrong += 1
        if kind == "local":
            seconds = info["elapsed_ns"] * 1e-9
        self.events.append((began, kind, seconds, str(tier)))
        return hit

    def get_hot(self):
        draw = random.Random(self.number)
        while not self.ends:
            self.get("local", key_of(0, self.number, draw.randrange(HOT)), 65536)
            time.sleep(0.002)

    def share(self):
        """Puts RATE entries a second, which all others know by the clock, and gets some of
        theirs."""
        draw, put = random.Random(100 + self.number), 0
        while not self.ends:
            at = int((time.monotonic() - self.began) * RATE)
            if put < at:
                put = at
                key = key_of(1, self.number, put)
                began = time.monotonic()
                how = self.store.put(key, bytes_of(key), recompute_seconds=1.0)
                self.events.append((began, "put", time.monotonic() - began, str(how)))
            host = (self.number + 1 + draw.randrange(HOSTS - 1)) % HOSTS
            number = at - 10 - draw.randrange(ASKED)
            if number > 0:
                self.get("shared", key_of(1, host, number), ENTRY, self.deadline)
            time.sleep(0.015)

    def late(self, event):
        """Whether a call took longer than its deadline, and no other thread was late as well."""
        began, kind, seconds, _ = event
        if kind not in ("shared", "put") or seconds <= self.deadline + GRACE:
            return False
        lag = sum(late for at, late in list(self.beats)
                  if began - late <= at <= began + seconds)
        return seconds - lag > self.deadline + GRACE

    def report(self, begin, end):
        events = [event for event in list(self.events) if begin <= event[0] < end]
        local = sorted(event[2] for event in events if event[1] == "local")
        shared = [event for event in events if event[1] == "shared"]
        puts = [event for event in events if event[1] == "put"]
        counts = {}
        for event in shared:
            counts[event[3]] = counts.get(event[3], 0) + 1
        return {"local": local, "shared": counts, "wrong": self.wrong,
                "shared_times": [(event[0], event[3]) for event in shared],
                "late": sum(self.late(event) for event in events),
                "most_get_ms": 1e3 * max((event[2] for event in shared), default=0),
                "puts": len(puts), "most_put_ms": 1e3 * max((event[2] for event in puts),
                                                             default=0),
                "beat_ms": 1e3 * max((late for at, late in list(self.beats)
                                      if begin <= at < end), default=0)}

    def answer(self, what, *rest):
        if what == "report":
            return self.report(*rest)
        if what == "stats":
            return self.store.remote_stats()
        if what == "put":
            first, count, size = rest
            for number in range(first, first + count):
                key = key_of(2, self.number, number)
                self.store.put(key, bytes_of(key, size), recompute_seconds=10.0)
            return self.store.remote_flush(deadline=20)
        if what == "get":
            host, first, count, size, deadline = rest
            return sum(self.get("own", key_of(2, host, number), size, deadline)
                       for number in range(first, first + count))
        if what == "clear":
            began = time.monotonic()
            self.store.clear(space=7 + 2)
            return time.monotonic() - began
        raise ValueError(what)

    def end(self):
        self.ends = True
        for thread in self.threads:
            thread.join()
        self.store.close()


def host_main(text):
    options = json.loads(text)
    sys.path.insert(0, options["python"])
    host = Host(options)
    print("{}", flush=True)
    for line in sys.stdin:
        try:
            print(json.dumps(host.answer(*json.loads(line)), default=str), flush=True)
        except Exception as error:  # pylint: disable=broad-except
            print(json.dumps({"fault": repr(error)}), flush=True)
    host.end()


class Talk:
    """The parent's end of a host."""

    def __init__(self, place, options):
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--host", json.dumps(options)], preexec_fn=place.within,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.take()

    def take(self):
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError("a host has ended")
        answer = json.loads(line)
        if isinstance(answer, dict) and "fault" in answer:
            raise RuntimeError(answer["fault"])
        return answer

    def say(self, *words):
        self.process.stdin.write(json.dumps(words) + "\n")
        self.process.stdin.flush()

    def ask(self, *words):
        self.say(*words)
        return self.take()

    def end(self):
        if self.process.poll() is None:
            self.process.stdin.close()
            try:
                self.process.wait(15)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.process.wait()


# ---- the world: all of these ----

class World:
    def __init__(self, build, deadline, large):
        self.parts = contextlib.ExitStack()
        # Entries of 64 MiB need memory for themselves, and time to come through the wire.
        self.sizes = {"tier.dram.capacity": "320MiB", "store.put_staging": "160MiB",
                      "tier.remote.deadline": "10"} if large else {
                          "tier.dram.capacity": "8MiB", "tier.remote.deadline": str(deadline)}
        try:
            self.make(build, deadline)
        except BaseException:
            self.parts.close()
            raise

    def make(self, build, deadline):
        self.folder = tempfile.mkdtemp(prefix="kvt-hosts-")
        self.parts.callback(shutil.rmtree, self.folder, ignore_errors=True)
        self.engine_at = [f"10.77.0.{10 + i}" for i in range(2 * MASTERS)]
        self.host_at = [f"10.77.0.{100 + i}" for i in range(HOSTS)]
        certificates(self.folder + "/tls", self.engine_at)
        places = {}
        for address in self.engine_at + self.host_at:
            places[address] = Place(address)
            self.parts.callback(places[address].end)
        tunnels = {address: place.tunnel for address, place in places.items()}
        self.wire = subprocess.Popen([sys.executable, __file__, "--wire", json.dumps(tunnels)],
                                     stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                     pass_fds=list(tunnels.values()),
                                     preexec_fn=servers.dies_with_parent)
        self.parts.callback(self.end_wire)
        self.cluster = Cluster(self.folder, [places[at] for at in self.engine_at])
        self.parts.callback(lambda: [node.kill() for node in self.cluster.nodes])
        self.password = self.folder + "/password"
        self.write_password(PASSWORD)
        self.began = time.monotonic()
        self.hosts = []
        for number, address in enumerate(self.host_at):
            settings = {
                **self.sizes, "store.policy": "lru", "tier.remote.namespace": "hosts@1",
                "tier.remote.hint_ttl": "2",
                "remote.pool.address": ",".join(f"{at}:{PORT}" for at in self.engine_at[:MASTERS]),
                "remote.pool.cluster": "yes", "remote.pool.user": "kvt",
                "remote.pool.password_file": self.password, "remote.pool.tls": "yes",
                "remote.pool.ca": self.folder + "/tls/ca"}
            self.hosts.append(Talk(places[address], {
                "number": number, "began": self.began, "settings": settings, "deadline": deadline,
                "python": os.path.join(os.path.abspath(build), "python")}))
            self.parts.callback(self.hosts[-1].end)
        time.sleep(ASKED / RATE + 2)  # until all entries that are asked for have been put

    def end_wire(self):
        self.wire.stdin.close()
        self.wire.wait()

    def write_password(self, text):
        with open(self.password + ".new", "w", encoding="ascii",
                  opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
            file.write(text + "\n")
        os.rename(self.password + ".new", self.password)

    def rules(self, pairs, **rule):
        """The network's rules between pairs of addresses, in both directions; none: as before."""
        text = [[a, b, rule] for one in pairs for a, b in (one, one[::-1])]
        self.wire.stdin.write(json.dumps(text) + "\n")
        self.wire.stdin.flush()
        self.wire.stdout.readline()

    def every_path(self):
        return [(host, node) for host in self.host_at for node in self.engine_at]

    def ask(self, *words):
        for host in self.hosts:
            host.say(*words)
        return [host.take() for host in self.hosts]

    def close(self):
        self.parts.close()


# ---- rows: what fails, and how it ends ----

def master_killed(world):
    node = world.cluster.masters()[0]
    node.kill()
    yield 0.1
    # Nobody mends it: the fault has ended when the replica has taken over.
    world.cluster.until(lambda: len(world.cluster.masters()) == MASTERS, 30)
    world.note["healed"] = time.monotonic()
    yield 6
    node.launch()


def slots_moved(world):
    """Moves slots with their keys, one after the other, for some seconds."""
    source, target = world.cluster.masters()[:2]
    ids = [node.tell("CLUSTER", "MYID") for node in (source, target)]
    slots = {int(source.tell("CLUSTER", "KEYSLOT", name)) for name in keys_of(source)[:400]}
    end, moved = time.monotonic() + 8, 0
    for slot in slots:
        if time.monotonic() > end:
            break
        target.tell("CLUSTER", "SETSLOT", slot, "IMPORTING", ids[0])
        source.tell("CLUSTER", "SETSLOT", slot, "MIGRATING", ids[1])
        yield 0.02
        while names := source.ask("CLUSTER", "GETKEYSINSLOT", slot, 100, many=True):
            source.tell("MIGRATE", target.host, PORT, "", 0, 5000, "REPLACE", "AUTH2", "admin",
                        "admin", "KEYS", *names)
        yield 0.02
        for node in (target, source, *world.cluster.masters()):
            node.tell("CLUSTER", "SETSLOT", slot, "NODE", ids[1])
        moved += 1
    world.note["slots_moved"] = moved


def full(policy):
    def row(world):
        for node in world.cluster.masters():
            used = int(node.tell("INFO", "memory").split("used_memory:")[1].split()[0])
            node.tell("CONFIG", "SET", "maxmemory-policy", policy)
            node.tell("CONFIG", "SET", "maxmemory", used + (4 << 20))
        yield 6
        world.cluster.set("maxmemory", 0)
        world.cluster.set("maxmemory-policy", "allkeys-lru")
    return row


def flushall(world):
    for _ in range(3):
        for node in world.cluster.masters():
            node.tell("FLUSHALL")
        yield 1


def network(seconds=6, **rule):
    def row(world):
        world.rules(world.every_path(), **rule)
        yield seconds
        world.rules([])
    return row


def partition_host(world):
    world.rules([(world.host_at[0], node) for node in world.engine_at], cut=True)
    yield 6
    world.rules([])


def partition_master(seen):
    """A master that no other node reaches; hosts do, or do not."""
    def row(world):
        node = world.cluster.masters()[0].host
        others = world.engine_at if seen else world.engine_at + world.host_at
        world.rules([(node, other) for other in others if other != node], cut=True)
        yield 8
        world.rules([])
        world.cluster.until(world.cluster.whole, 30)
    return row


def certificate(world):
    time.sleep(2)  # until it has expired
    world.cluster.set("tls-cert-file", world.folder + "/tls/expired")
    world.cluster.drop_clients()
    yield 6
    world.cluster.set("tls-cert-file", world.folder + "/tls/cert")


def password(world):
    """The engine knows the new one at once, the hosts some seconds later."""
    for node in world.cluster.alive():
        node.tell("ACL", "SETUSER", "kvt", "resetpass", ">a-second-password")
    world.cluster.drop_clients()
    yield 5
    world.write_password("a-second-password")


def keys_of(node, pattern=b"kvt1:*"):
    """Names of up to some thousands of keys of a node."""
    out = subprocess.run(
        ["redis-cli", "-s", os.path.join(node.folder, f"socket-{node.number}"), "--user", "admin",
         "--pass", "admin", "--no-auth-warning", "--scan", "--pattern", pattern.decode()],
        check=True, capture_output=True, stdin=subprocess.DEVNULL)
    return out.stdout.split()


def garbage(world):
    """Texts, numbers, lists and values of 64 MiB under the names of chunks, epochs and claims."""
    draw = random.Random(5)
    for _ in range(4):
        for node in world.cluster.masters():
            names = keys_of(node)
            draw.shuffle(names)
            large = names[:1]
            for name in names[1:100]:
                what = draw.randrange(5)
                if what == 0:
                    node.ask("SET", name, draw.randbytes(draw.randrange(600)))
                elif what == 1:
                    node.ask("DEL", name)
                    node.ask("RPUSH", name, "a", "b")
                elif what == 2:
                    node.ask("SETRANGE", name, draw.randrange(4000), draw.randbytes(16))
                elif what == 3:
                    node.ask("APPEND", name, "x")
                else:
                    node.ask("SET", name, draw.randbytes(2 << 20))
            for name in large:
                node.ask("SETRANGE", name, (64 << 20) - 1, "x")
        yield 1


def version(world):
    """The objects of a host with another version of the object: its number in every head."""
    for _ in range(6):
        for node in world.cluster.masters():
            for name in keys_of(node, b"*}:*:0")[:100]:
                node.ask("SETRANGE", name, 8, b"\x02\x00")
        yield 1


def large_entries(world):
    """Entries of 64 MiB, which one host puts and the others get, beside the rest."""
    first = 1000
    for number in range(first, first + 2):
        world.hosts[0].ask("put", number, 1, 64 << 20)
        got = [host.ask("get", 0, number, 1, 64 << 20, 10.0) for host in world.hosts[1:]]
        world.note["large_got"] = world.note.get("large_got", 0) + sum(got)
        yield 1


ROWS = {"quiet": lambda world: iter([6]),
        "master_killed": master_killed, "slots_moved": slots_moved,
        "full_noeviction": full("noeviction"), "full_eviction": full("allkeys-lru"),
        "flushall": flushall, "delay": network(delay=0.004), "delay_long": network(delay=0.1),
        "loss": network(loss=0.01), "partition_host": partition_host,
        "partition_master": partition_master(False), "partition_minority": partition_master(True),
        "certificate": certificate, "password": password, "garbage": garbage,
        "large_entries": large_entries, "version": version}
LARGE = ("large_entries",)  # rows whose hosts have more memory
QUIET = 5  # seconds before a fault
CLEARED = 8  # entries whose copies are cleared during it


def quantile(values, share):
    return values[min(len(values) - 1, int(share * len(values)))] if values else None


def rate(reports):
    """The share of the shared gets that came from the engine."""
    counts = {}
    for report in reports:
        for how, count in report["shared"].items():
            counts[how] = counts.get(how, 0) + count
    asked = sum(count for how, count in counts.items() if how not in ("dram", "hbm", "ssd"))
    return counts.get("remote", 0) / asked if asked else 0.0, counts


def used_again(times, healed, before):
    """Seconds from an instant until a bin from which on nine tenths of the share before come from
    the engine; None: not within what was seen."""
    bins = {}
    for when, how in times:
        if how not in ("dram", "hbm", "ssd") and when >= healed:
            bins.setdefault(int((when - healed) / BIN), []).append(how == "remote")
    for number in sorted(bins):
        near = bins[number] + bins.get(number + 1, [])
        if statistics.mean(near) >= 0.9 * before:
            return (number + 1) * BIN
    return None


def delta(after, before):
    names = ("hits", "misses", "known_misses", "timeouts", "node_failures", "bad_records", "unfit",
             "published", "deduplicated", "dropped_queue", "dropped_node", "deleted")
    rows = [{name: a[name] - b[name] for name in names} for a, b in zip(after, before)]
    return {name: sum(row[name] for row in rows) for name in names}


def measure(world, name):
    world.note = {}
    world.cluster.until(world.cluster.settled, 40)
    first = int((time.monotonic() - world.began) * 1000)
    world.hosts[0].ask("put", first, CLEARED, ENTRY)
    began = time.monotonic()
    time.sleep(QUIET)
    fault = time.monotonic()
    before = world.ask("report", began, fault)
    stats = world.ask("stats")
    share, _ = rate(before)
    cleared = None
    for seconds in ROWS[name](world):
        if cleared is None:
            # The clear of one host, while the fault lasts.
            cleared = world.hosts[1].ask("clear")
        time.sleep(seconds)
    ended = time.monotonic()
    healed = world.note.pop("healed", ended)
    during = world.ask("report", fault, ended)
    after = world.ask("stats")
    time.sleep(3)
    again = None
    while again is None and time.monotonic() < healed + 45:
        reports = world.ask("report", healed, time.monotonic())
        again = used_again([one for report in reports for one in report["shared_times"]], healed,
                           share)
        if again is None:
            time.sleep(0.5)
    # A second after the engine has the clear no host finds a copy from before it.
    world.cluster.until(lambda: world.hosts[1].ask("stats")["owed_clears"] == 0, 40)
    time.sleep(1.2)
    stale = sum(host.ask("get", 0, first, CLEARED, ENTRY, 1.0) for host in world.hosts[2:])
    local = [sorted(t for report in reports for t in report["local"])
             for reports in (before, during)]
    p99 = [quantile(values, 0.99) for values in local]
    last = world.ask("report", began, time.monotonic())
    used, counts = rate(during)
    return {
        "row": name, "wrong": sum(report["wrong"] for report in last), "stale": stale,
        "late": sum(report["late"] for report in last),
        "p99_before_us": 1e6 * p99[0], "p99_during_us": 1e6 * p99[1],
        "p99_ratio": p99[1] / p99[0], "used_again_seconds": again,
        "fault_seconds": ended - fault, "share_before": share, "share_during": used,
        "gets_during": counts, "puts_during": sum(report["puts"] for report in during),
        "most_get_ms": max(report["most_get_ms"] for report in during),
        "most_put_ms": max(report["most_put_ms"] for report in during),
        "most_beat_ms": max(report["beat_ms"] for report in during),
        "clear_ms": 1e3 * cleared, "counters": delta(after, stats),
        "nodes_open": max(one["nodes_open"] for one in world.ask("stats")),
        "message": next((one["message"] for one in after if one["message"]), ""), **world.note}


def main():
    if len(sys.argv) == 3 and sys.argv[1] in ("--wire", "--host"):
        return wire(json.loads(sys.argv[2])) if sys.argv[1] == "--wire" else host_main(sys.argv[2])
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build")
    parser.add_argument("--deadline", type=float, default=0.05, help="of a get; seconds")
    parser.add_argument("--row", action="append", choices=list(ROWS), help="this row alone")
    parser.add_argument("--json", help="file that has the rows so far after each of them; rows "
                                       "that it has already are not run again")
    options = parser.parse_args()
    if servers.program() is None or os.geteuid() != 0:
        print("hosts.py: needs root, and Redis or Valkey", file=sys.stderr)
        return 77
    rows = []
    if options.json and os.path.exists(options.json):
        with open(options.json, encoding="utf-8") as file:
            rows = json.load(file)["rows"]
    wanted = [name for name in options.row or ROWS if name not in {row["row"] for row in rows}]
    wanted.sort(key=lambda name: name in LARGE)
    world, large = None, None
    try:
        for name in wanted:
            if large != (name in LARGE):
                large = name in LARGE
                if world is not None:
                    world.close()
                world = World(options.build, options.deadline, large)
            rows.append(measure(world, name))
            print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
            if options.json:
                with open(options.json, "w", encoding="utf-8") as file:
                    json.dump({"rows": rows}, file, indent=1)
    finally:
        if world is not None:
            world.close()
    document = {"rows": rows, "wrong": sum(row["wrong"] + row["stale"] for row in rows),
                "late": sum(row["late"] for row in rows),
                "p99_ratio_most": max(row["p99_ratio"] for row in rows),
                "used_again_seconds": {row["row"]: row["used_again_seconds"] for row in rows}}
    print(json.dumps(document, indent=1))
    return 1 if document["wrong"] or document["late"] else 0


if __name__ == "__main__":
    sys.exit(main())
