# SPDX-License-Identifier: Apache-2.0
"""A server of this process that commands take for an engine which hosts share."""

import socketserver
import threading


class Engine:
    """It keeps what is set, and tells of its memory what a test says; None: it refuses to."""

    def __init__(self, memory=None):
        self.kept, self.memory, engine = {}, memory, self

        class Talk(socketserver.StreamRequestHandler):
            def handle(self):
                while line := self.rfile.readline():
                    words = []
                    for _ in range(int(line[1:])):
                        words.append(self.rfile.read(int(self.rfile.readline()[1:]) + 2)[:-2])
                    self.wfile.write(engine.answer(words))

        self.server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Talk)
        self.server.daemon_threads = True
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def answer(self, words):
        if words[0] == b"HELLO":
            return b"%0\r\n"
        if words[0] == b"SET" and (b"NX" not in words or words[1] not in self.kept):
            self.kept[words[1]] = words[2]
        if words[0] in (b"EXISTS", b"UNLINK"):
            there = words[1] in self.kept
            if words[0] == b"UNLINK":
                self.kept.pop(words[1], None)
            return b":%d\r\n" % there
        if words[0] in (b"GET", b"INFO"):
            value = self.kept.get(words[1]) if words[0] == b"GET" else self.memory
            if words[0] == b"INFO" and value is None:
                return b"-NOPERM this user may not\r\n"
            return b"$-1\r\n" if value is None else b"$%d\r\n%s\r\n" % (len(value), value)
        return b"+OK\r\n"

    def values(self, part):
        return [value for key, value in sorted(self.kept.items()) if part in key]

    def close(self):
        if self.server is not None:
            self.server.shutdown()
            self.server.server_close()
        self.server = None
