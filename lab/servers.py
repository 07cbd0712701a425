#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Servers of Valkey or Redis on this machine, single or as a cluster of masters.

    servers.py NODES COMMAND...   runs a command with their addresses in the place of "{}"
    servers.py --serve            for tests/support/servers.h: a line of words, with tabs between
                                  them, is a request, and each is answered by one line

They end with the process that started them. Exit code 77, or the answer "absent": no server is
installed here.
"""
import ctypes
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

SLOTS = 16384
WAIT_SECONDS = 10
TRIES = 8  # of ports that others may have taken
# redis-check-rdb is a server when it is called redis-server.
PROGRAMS = (("valkey-server", "valkey-server"), ("redis-server", "redis-server"),
            ("redis-check-rdb", "redis-server"))


def program():
    """The server's program and the name that it is to be called by; None: there is none."""
    for file, name in PROGRAMS:
        path = shutil.which(file, path="/usr/bin:/usr/local/bin:" + os.environ.get("PATH", ""))
        if path is not None:
            return path, name
    return None


def free_port():
    """One that is free now and that the system gives to no connection by itself."""
    with open("/proc/sys/net/ipv4/ip_local_port_range", encoding="ascii") as file:
        end = int(file.read().split()[0])
    while True:
        port = random.SystemRandom().randrange(max(1024, end // 2), end)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
                return port
            except OSError:
                continue


def dies_with_parent():
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


class Server:
    host = "127.0.0.1"
    login = None  # words that each question begins with
    patience = 2  # seconds

    def __init__(self, folder, number, cluster, tls, arguments):
        self.folder, self.number, self.cluster, self.tls = folder, number, cluster, tls
        self.arguments, self.process = arguments, None

    def enter(self):
        """Runs in the server's process before its program."""
        dies_with_parent()

    def ask(self, *words, many=False):
        """The answer to one command, an error as its text; None: there was none. many: it is a list
        of texts."""
        lines, one = [self.login, words] if self.login else [words], None
        try:
            with socket.socket(socket.AF_UNIX) as talk:
                talk.settimeout(self.patience)
                talk.connect(os.path.join(self.folder, f"socket-{self.number}"))
                for line in lines:
                    parts = [word if isinstance(word, bytes) else str(word).encode()
                             for word in line]
                    talk.sendall(b"*%d\r\n" % len(parts) + b"".join(
                        b"$%d\r\n%s\r\n" % (len(part), part) for part in parts))
                with talk.makefile("rb") as stream:
                    for line in lines:
                        if many and line is words:
                            return [self.answer(stream)
                                    for _ in range(int(stream.readline()[1:]))]
                        one = self.answer(stream)
        except OSError:
            return None
        return one

    @staticmethod
    def answer(stream):
        head = stream.readline()
        if head[:1] == b"$" and int(head[1:]) >= 0:
            return stream.read(int(head[1:]) + 2)[:-2].decode(errors="replace")
        return head[1:].decode().strip() or None

    def launch(self):
        """Starts it and waits until it answers. False: it does not, or has found a port taken."""
        path, name = program()
        here = os.path.join(self.folder, f"socket-{self.number}")
        if os.path.exists(here):
            os.unlink(here)
        words = [name, "--port", self.port, "--bind", self.host, "--dir", self.folder, "--save",
                 "", "--appendonly", "no", "--logfile", f"log-{self.number}", "--loglevel",
                 "warning", "--protected-mode", "no", "--maxmemory-policy", "allkeys-lru",
                 "--unixsocket", here, "--daemonize", "no"]
        if self.cluster:
            words += ["--cluster-enabled", "yes", "--cluster-config-file",
                      f"nodes-{self.number}.conf", "--cluster-port", self.bus,
                      "--cluster-node-timeout", "1000", "--cluster-require-full-coverage", "no"]
        if self.tls:
            words += ["--tls-port", self.tls_port]
        self.process = subprocess.Popen([str(word) for word in words + self.arguments],
                                        executable=path, preexec_fn=self.enter,
                                        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                        stderr=subprocess.DEVNULL)
        end = time.monotonic() + WAIT_SECONDS
        while time.monotonic() < end and self.process.poll() is None:
            # The one that answers at the port is this server; one with a password answers, too.
            if os.path.exists(here) and self.ask("PING") is not None:
                return True
            time.sleep(0.02)
        return False

    def launch_new(self):
        """The same with ports that are free, also when others take them meanwhile."""
        for _ in range(TRIES):
            self.port, self.bus, self.tls_port = free_port(), free_port(), free_port()
            if self.launch():
                return True
            if self.process.poll() is None:
                return False  # it runs, and does not answer
        return False

    def kill(self):
        if self.process is not None:
            self.process.kill()
            self.process.wait()


class Servers:
    def __init__(self, nodes, cluster, tls=False, arguments=()):
        self.folder = tempfile.mkdtemp(prefix="kvterrace-cluster-")
        self.cluster = cluster
        self.nodes = [Server(self.folder, i, cluster, tls, list(arguments)) for i in range(nodes)]
        self.serves = all(node.launch_new() for node in self.nodes)
        if self.serves and cluster:
            self.serves = self.join() and self.wait()

    def join(self):
        """Gives each node its part of the slots and joins all to the first."""
        for i, node in enumerate(self.nodes):
            first, end = SLOTS * i // len(self.nodes), SLOTS * (i + 1) // len(self.nodes)
            if node.ask("CLUSTER", "ADDSLOTSRANGE", str(first), str(end - 1)) != "OK":
                return False
            if i > 0 and self.nodes[0].ask("CLUSTER", "MEET", node.host, str(node.port),
                                           str(node.bus)) != "OK":
                return False
        return True

    def wait(self):
        """Waits until every node sees all slots served."""
        wanted = ("cluster_state:ok", f"cluster_known_nodes:{len(self.nodes)}\r",
                  f"cluster_slots_ok:{SLOTS}")
        end = time.monotonic() + WAIT_SECONDS
        for node in self.nodes:
            while True:
                info = node.ask("CLUSTER", "INFO") or ""
                if all(word in info for word in wanted):
                    break
                if time.monotonic() > end:
                    return False
                time.sleep(0.02)
        return True

    def addresses(self):
        return ",".join(f"{node.host}:{node.port}" for node in self.nodes)

    def restart(self, number):
        """Starts a server in a node's place, which has its slots and none of its objects."""
        self.nodes[number].kill()
        return self.nodes[number].launch() and (not self.cluster or self.wait())

    def stop(self):
        for node in self.nodes:
            node.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


def answer(servers, words):
    """Carries a request out; the servers that are there then, and the line of the answer."""
    what, rest = words[0], words[1:]
    if what == "start":
        if program() is None:
            return None, "absent"
        servers = Servers(int(rest[0]), rest[1] == "cluster", rest[2] == "tls", rest[3:])
        if not servers.serves:
            servers.stop()
            return None, "failed"
        return servers, f"{servers.addresses()}\t{servers.nodes[0].tls_port}"
    node = servers.nodes[int(rest[0])] if rest else None
    if what == "say":
        return servers, node.ask(*rest[1].split(" ")) or ""
    if what == "signal":
        node.process.send_signal(int(rest[1]))
        if int(rest[1]) == signal.SIGSTOP:  # none of its threads answers any more
            os.waitid(os.P_PID, node.process.pid, os.WSTOPPED)
    elif what == "kill":
        node.kill()
    elif what == "restart":
        return servers, "done" if servers.restart(int(rest[0])) else "failed"
    elif what == "stop":
        servers.stop()
        servers = None
    return servers, "done"


def serve():
    servers = None
    try:
        for line in sys.stdin:
            servers, text = answer(servers, line.rstrip("\n").split("\t"))
            print(text.replace("\n", " "), flush=True)
    finally:
        if servers is not None:
            servers.stop()


def main(arguments):
    if arguments == ["--serve"]:
        return serve()
    if len(arguments) < 2 or not arguments[0].isdigit():
        sys.exit(__doc__)
    if program() is None:
        print("servers.py: neither Valkey nor Redis is installed", file=sys.stderr)
        return 77
    servers = Servers(int(arguments[0]), int(arguments[0]) > 1)
    try:
        if not servers.serves:
            sys.exit("servers.py: a server does not serve")
        command = [word.replace("{}", servers.addresses()) for word in arguments[1:]]
        return subprocess.run(command, check=False).returncode
    finally:
        servers.stop()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
