#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What an adapter makes of an engine's version that it was not tested with."""

import abc
import dataclasses
import logging
import os
import unittest

from package_case import PackageCase, kvterrace
from kvterrace._engines import Engine


class Base(abc.ABC):
    """A class of an engine's, which kvterrace's module name must not have."""

    @abc.abstractmethod
    def load(self, keys, places):
        ...

    def told(self, event, when=0.0):
        ...


Base.__module__ = "engine.base"


class Ours(Base):
    def load(self, keys, places):
        return keys, places

    def told(self, event, when=0.0):
        return event, when


class More(Ours):
    def told(self, *events, **more):
        return events, more

    def load(self, keys, places, hurry=False):
        return keys, places, hurry


class Renamed(Base):
    def load(self, names, places):
        return names, places


class Shorter(Base):
    def load(self, keys):
        return keys


class Longer(Base):
    def load(self, keys, places, when):
        return keys, places, when


class Lacks(Base):
    pass


@dataclasses.dataclass
class Result:
    job: int
    good: bool = True


class Versions(PackageCase):
    def engine(self, found="2.0"):
        return Engine("Engine", found, ("1.0", "1.1"))

    def test_a_tested_version_is_not_looked_at(self):
        with self.assertNoLogs("kvterrace"):
            self.engine("1.1+cpu").check(Lacks, calls=[(Result, "colour")])

    def test_the_same_interface_is_a_warning_once(self):
        engine = self.engine()
        with self.assertLogs("kvterrace", logging.WARNING) as said:
            engine.check(Ours, More, calls=[(Result, "job", "good"), (print, "end")],
                         whole=[(Result, "job", "?good", "?colour")], holds=[("one", lambda: True)])
            engine.check(Ours)
        self.assertEqual(len(said.output), 1)
        self.assertIn("tested with Engine 1.0, 1.1, and this is 2.0", said.output[0])

    def test_a_difference_is_refused_by_name(self):
        for ours, about, text in (
                ((Renamed,), {}, "Renamed.load is called with (keys, places)"),
                ((Shorter,), {}, "Shorter.load is called with (keys, places)"),
                ((Longer,), {}, "Longer.load is called without when"),
                ((Lacks,), {}, "Lacks lacks load"),
                ((), {"calls": [(Result, "job", "colour")]}, "Result takes no colour"),
                ((), {"whole": [(Result, "job")]}, "Result takes good, too"),
                ((), {"holds": [("KV is kept", lambda: False)]}, "not so: KV is kept"),
                ((), {"holds": [("KV is kept", lambda: {}["layers"])]}, "KeyError")):
            with self.assertRaises(kvterrace.UnsupportedError) as caught:
                self.engine().check(*ours, **about)
            self.assertIn(text, str(caught.exception))
            self.assertIn("Engine 2.0 differs", str(caught.exception))

    def test_a_name_that_is_gone_is_refused_by_name(self):
        with self.assertRaises(kvterrace.UnsupportedError) as caught:
            with self.engine():
                from unittest import nobody_has_this  # noqa: F401
        self.assertIn("nobody_has_this", str(caught.exception))
        with self.assertRaises(ImportError):
            with self.engine("1.0"):
                from unittest import nobody_has_this  # noqa: F401, F811

    def test_a_difference_may_be_tried(self):
        os.environ["KVTERRACE_UNTESTED_ENGINE"] = "1"
        self.addCleanup(os.environ.pop, "KVTERRACE_UNTESTED_ENGINE")
        with self.assertLogs("kvterrace", logging.WARNING) as said:
            self.engine().check(Renamed)
        self.assertIn("Renamed.load", said.output[0])


if __name__ == "__main__":
    unittest.main()
