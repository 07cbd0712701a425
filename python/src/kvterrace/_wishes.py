# SPDX-License-Identifier: Apache-2.0
"""A request's wishes about its KV, as clients and orchestrators attach them to it. They are advice
from outside: what is wrong in them is said once and left out, and never stops a request."""

import time

from ._kvt import lib

ACTION = "kvterrace.request"  # of a KV hint that carries wishes
_TEXT = "kvterrace"
_KINDS = ("retain", "next_use", "demote", "session_end")
_EXPECTING = ("retain", "next_use")
_LIFETIME_MAX, _CLASSES = 1e9, 64


class Wishes:
    """Of one request: skip_read, skip_write; tenant, class_id and lifetime of what it stores; hint,
    a kind of Store.hint that its entries get when it has ended, with its seconds."""

    __slots__ = ("skip_read", "skip_write", "tenant", "class_id", "lifetime", "hint",
                 "hint_seconds", "hint_until")

    def __init__(self):
        self.skip_read = self.skip_write = False
        self.tenant = self.class_id = 0
        self.lifetime = self.hint_seconds = self.hint_until = 0.0
        self.hint = None

    @property
    def entry(self):
        """What its entries have beside others', as fields of a kvt_entry; None: nothing."""
        fields = {"tenant": self.tenant, "class_id": self.class_id,
                  "lifetime_seconds": self.lifetime}
        return {name: value for name, value in fields.items() if value} or None

    def expectation(self):
        """(kind, seconds) of the hint as of now, or None."""
        if self.hint is None:
            return None
        seconds = self.hint_until - time.time() if self.hint_until else self.hint_seconds
        if seconds <= 0 and self.hint in _EXPECTING:
            return None  # its instant has passed
        return self.hint, min(max(seconds, 0.0), lib.KVT_HINT_SECONDS_MAX)


NONE = Wishes()


def _flag(value):
    return isinstance(value, bool)


def _number(least, most, *kinds):
    return lambda value: (isinstance(value, kinds) and not isinstance(value, bool) and
                          least <= value <= most)


_FIELDS = {"skip_read": _flag, "skip_write": _flag,
           "tenant": _number(0, lib.KVT_TENANTS_MAX - 1, int),
           "class_id": _number(0, _CLASSES - 1, int),
           "lifetime": _number(0, _LIFETIME_MAX, int, float),
           "hint": lambda value: value in _KINDS,
           "hint_seconds": _number(0, lib.KVT_HINT_SECONDS_MAX, int, float)}


def _own(wishes, given, said):
    """Wishes in kvterrace's own words."""
    if not isinstance(given, dict):
        said.once("kvterrace: a request's wishes are no object")
        return
    for name, value in given.items():
        good = _FIELDS.get(name) if isinstance(name, str) else None
        if good is None:
            said.once("kvterrace: a request has a wish that is none of %s", ", ".join(_FIELDS))
        elif not good(value):
            said.once("kvterrace: a request's %s is out of range or of another type, and left out",
                      name, of=name)
        else:
            setattr(wishes, name, value)
            wishes.hint_until = 0.0 if name == "hint" else wishes.hint_until
    if wishes.hint in _EXPECTING and not wishes.hint_seconds and not wishes.hint_until:
        said.once("kvterrace: a request's hint %s lacks hint_seconds", wishes.hint, of=wishes.hint)
        wishes.hint = None


def _agent(wishes, given):
    """An agent's hint: its context is to be kept for so long, while a tool runs, or let go."""
    if not isinstance(given, dict):
        return
    control, managed = given.get("cache_control"), given.get("context_management")
    ttl = control.get("ttl") if isinstance(control, dict) else None
    until, edits = given.get("lease_until"), None
    if isinstance(managed, dict):
        edits = managed.get("edits")
    positive = _number(1e-9, 1e12, int, float)
    if positive(ttl):
        wishes.hint, wishes.hint_seconds = "retain", float(ttl)
    elif positive(until):
        wishes.hint, wishes.hint_until = "retain", float(until)
    for edit in edits if isinstance(edits, list) else ():
        if isinstance(edit, dict) and edit.get("type") == "evict" and \
                edit.get("block_start") is None and edit.get("block_end") is None:
            wishes.hint, wishes.hint_seconds, wishes.hint_until = "demote", 0.0, 0.0


def wishes_of(parameters, hints, said):
    """The Wishes of a request: of `agent_hint` in its parameters, of its KV hints' actions, and of
    `kvterrace` in its parameters, of which the later count more. said: a Said."""
    own, agent, actions = None, None, []
    if isinstance(parameters, dict):
        own, agent = parameters.get(_TEXT), parameters.get("agent_hint")
    every = getattr(hints, "actions", None)
    if isinstance(every, list):
        actions = [getattr(one, "payload", None) for one in every
                   if getattr(one, "action_type", None) == ACTION]
    if own is None and agent is None and not actions:
        return NONE
    wishes = Wishes()
    _agent(wishes, agent)
    for given in (*actions, own):
        if given is not None:
            _own(wishes, given, said)
    return wishes
