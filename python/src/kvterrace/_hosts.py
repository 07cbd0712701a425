# SPDX-License-Identifier: Apache-2.0
"""What other hosts have, for engines whose lookups may not wait and may answer later."""

import threading

from ._errors import Error


class Hosts:
    """Asks for keys on a thread of its own. Keys of one prefix have a group in common, which is any
    hashable, and are asked for in their order: what is behind one that nobody has is not there.

    seconds: how long to wait for an answer; None: as remote.deadline says."""

    def __init__(self, store, seconds=None):
        self._store, self._seconds = store, seconds
        self._change, self._closed, self._thread = threading.Condition(), False, None
        self._known = {}  # {group: {key: True, False, or None while it is asked for}}
        self._fresh, self._sent = {}, []  # (group, its keys)

    def ask(self, group, key):
        """True: somebody is known to have it; False: nobody; None: ask again after send()."""
        with self._change:
            known = self._known.setdefault(group, {})
            if key not in known:
                known[key] = None
                self._fresh.setdefault(group, []).append(key)
            return known[key]

    def send(self):
        """Puts the questions that ask() has gathered."""
        with self._change:
            if not self._fresh or self._closed:
                return
            self._sent += self._fresh.items()
            self._fresh = {}
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="kvterrace-hosts",
                                                daemon=True)
                self._thread.start()
            self._change.notify()

    def forget(self, wanted):
        """Drops the answers of the groups for which wanted(group) is true."""
        with self._change:
            for group in [one for one in self._known if wanted(one)]:
                self._known.pop(group)
                self._fresh.pop(group, None)

    def _run(self):
        while True:
            with self._change:
                while not self._sent and not self._closed:
                    self._change.wait()
                if self._closed:
                    return
                group, keys = self._sent.pop(0)
                wanted = group in self._known
            found = self._match(keys) if wanted else 0
            with self._change:
                known = self._known.get(group, {})
                for index, key in enumerate(keys):
                    if key in known:
                        known[key] = index < found

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
