# SPDX-License-Identifier: Apache-2.0
"""What blocking calls and requests of a queue have in common: entries, targets, deadlines."""

import time

from ._convert import NO_DEADLINE, new
from ._errors import wrong
from ._kvt import ffi, lib
from ._memory import memory_of
from ._types import Layout, View, check_key, layout_from


def instant(deadline):
    """The instant of CLOCK_MONOTONIC, in nanoseconds, that lies so many seconds ahead. 0 and less
    is an instant that has passed: what takes no wait is done all the same."""
    if deadline is None:
        return NO_DEADLINE
    try:
        ahead = int(deadline * 1e9)
    except (TypeError, ValueError, OverflowError):
        raise wrong("a deadline is a number of seconds from now") from None
    return min(max(time.monotonic_ns() + ahead, 0), NO_DEADLINE - 1) if ahead > 0 else 0


def has_passed(until):
    """Whether an instant that lay ahead does no more: the thread had no core meanwhile."""
    return 0 < until <= time.monotonic_ns()


def make_entry(key, layout, parent, numbers, groups, token_scores):
    """The kvt_entry, and what it points to."""
    entry, keep = new("kvt_entry"), []
    ffi.memmove(entry.key.bytes, check_key(key), 32)
    if parent is not None:
        if parent == key:
            raise wrong("an entry is not its own parent")
        keep.append(ffi.new("kvt_key *"))
        ffi.memmove(keep[-1].bytes, check_key(parent), 32)
        entry.parent = keep[-1]
    if groups is None:
        entry.layout = layout._made[0]
    else:
        keep.append(ffi.new("kvt_layout[]", [one._made[0] for one in groups]))
        entry.groups, entry.group_count = keep[-1], len(groups)
    if token_scores is not None:
        keep.append(ffi.new("float[]", list(token_scores)))
        entry.token_scores, entry.token_score_count = keep[-1], len(keep[-1])
    for name, value in numbers.items():
        try:
            setattr(entry, name, value)
        except (OverflowError, TypeError) as error:
            raise wrong(f"{name} is out of range: {error}") from error
    return entry, keep


def out_of_range(numbers):
    """Which of an entry's numbers no put takes, for a message."""
    most = {"recompute_seconds": 1e9, "lifetime_seconds": 1e9, "class_id": 65535}
    return "; ".join(f"{name} is from 0 to {top:g}, not {numbers[name]!r}"
                     for name, top in most.items() if not 0 <= numbers[name] <= top)


class Handle:
    """A handle of bridge.h: ended once, freed with this object."""

    def __init__(self, raw, end):
        self.raw, self._end = raw, end

    def close(self):
        self._end(self.raw)

    @property
    def state(self):
        return lib.kvtpy_state(self.raw)

    def __del__(self, free=lib.kvtpy_free):
        if getattr(self, "raw", None):
            self._end(self.raw)
            free(self.raw)


class Source:
    """The memory of a put: a packed buffer, a View, or a View for each group."""

    def __init__(self, data, layout):
        self.views, self.memory, self.groups = [], None, None
        if isinstance(layout, (list, tuple)):
            self.groups = list(layout)
            if not self.groups or not all(isinstance(one, Layout) for one in self.groups):
                raise wrong("layout is a Layout, or a list of them, one for each group")
        elif layout is not None and not isinstance(layout, Layout):
            raise wrong(f"layout is a Layout, not {type(layout).__name__}")
        if isinstance(data, View):
            data, layout = [data], layout or data.layout
            if self.groups is None and data[0].layout != layout:
                raise wrong("the view is of another layout")
        if isinstance(data, (list, tuple)):
            if not data or not all(isinstance(view, View) for view in data):
                raise wrong("the data are a buffer, a View, or a list of Views")
            if self.groups is None and len(data) > 1:
                self.groups = [view.layout for view in data]
            if self.groups is not None and self.groups != [view.layout for view in data]:
                raise wrong("the views are of other layouts than the groups")
            self.views = list(data)
        else:
            self.memory = memory_of(data)
            if layout is None:
                layout = Layout.opaque(self.memory.bytes) if self.memory.bytes else None
            if layout is None:
                raise wrong("the buffer is empty")
            wanted = sum(one.bytes for one in self.groups or [layout])
            for one in self.groups or [layout]:
                self.memory.check_kind(one.dtype)
            if self.memory.bytes != wanted:
                raise wrong(f"the buffer has {self.memory.bytes} bytes, the layout {wanted}")
        self.layout = layout


def packed_view(address, count):
    """The view of a packed buffer of `count` bytes."""
    return ffi.new("kvt_view *", lib.kvt_view_packed(address, count))


class Held:
    """Views that a call holds, and one view of them all; in a with statement, or until drop()."""

    def __init__(self, views, writable):
        self._held, self.views = [], []
        try:
            for view in views:
                if not hasattr(view, "_hold"):
                    raise wrong(f"a {type(view).__name__} is no View; View.packed makes one")
                self.views.append(view._hold(writable))
                self._held.append(view)
        except BaseException:
            self.drop()
            raise
        self.array = ffi.new("kvt_view *[]", self.views)
        self.view = ffi.new("kvt_view *", lib.kvt_view_grouped(self.array, len(self.views)))

    def drop(self):
        held, self._held = self._held, []
        for view in held:
            view._drop()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.drop()


def describe(handle, key):
    """(status, description, layouts of its groups) of an entry."""
    what = new("kvt_description")
    groups = ffi.new("kvt_layout[]", lib.KVT_GROUPS_MAX)
    what.groups, what.groups_capacity = groups, lib.KVT_GROUPS_MAX
    status = lib.guarded_kvt_store_describe(handle, key, what)
    layouts = []
    if status == lib.KVT_OK:
        made = [groups[index] for index in range(what.group_count)] or [what.layout]
        layouts = [layout_from(one) for one in made]
    return status, what, layouts
