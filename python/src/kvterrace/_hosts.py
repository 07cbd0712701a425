# SPDX-License-Identifier: Apache-2.0
"""What other hosts have, for engines whose lookups may not wait and may answer later."""

import threading

from ._errors import Error


class Asked:
    """What is known of the keys of one prefix, which are asked for in their order: what is behind
    one that nobody has is not there. Its owner keeps it; what is answered later goes with it."""

    __slots__ = ("known", "fresh", "over")

    def __init__(self):
        self.known, self.fresh = {}, []  # {key: True, False, or None while it is asked for}
        self.over = False


class Hosts:
    """Asks for keys on a thread of its own.

    seconds: how long to wait for an answer; None: as remote.deadline says."""

    def __init__(self, store, seconds=None):
        self._store, self._seconds = store, seconds
        self._change, self._closed, self._thread = threading.Condition(), False, None
        self._fresh, self._sent = [], []  # Askeds with keys to send; (Asked, keys)

    def ask(self, asked, key):
        """True: somebody is known to have it; False: nobody; None: ask again after send()."""
        with self._change:
            if key not in asked.known:
                asked.known[key] = None
                if not asked.fresh:
                    self._fresh.append(asked)
                asked.fresh.append(key)
            return asked.known[key]

    def send(self):
        """Puts the questions that ask() has gathered."""
        with self._change:
            if not self._fresh or self._closed:
                return
            for asked in self._fresh:
                self._sent.append((asked, asked.fresh))
                asked.fresh = []
            self._fresh = []
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="kvterrace-hosts",
                                                daemon=True)
                self._thread.start()
            self._change.notify()

    def forget(self, asked):
        """Nobody waits for the answers any more."""
        with self._change:
            asked.over = True

    def _run(self):
        while True:
            with self._change:
                while not self._sent and not self._closed:
                    self._change.wait()
                if self._closed:
                    return
                asked, keys = self._sent.pop(0)
                wanted = not asked.over
            found = self._match(keys) if wanted else 0
            with self._change:
                for index, key in enumerate(keys):
                    asked.known[key] = index < found

    def _match(self, keys):
        try:
            return self._store.match(keys, hosts=True, deadline=self._seconds)
        except Error:  # closed meanwhile
            return 0

    def close(self):
        """Waits for the question under way. A second close does nothing."""
        with self._change:
            self._closed = True
            self._change.notify()
        if self._thread is not None:
            self._thread.join()
