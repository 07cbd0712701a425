# SPDX-License-Identifier: Apache-2.0
"""Memory that calls of a store use without a copy (connect.h)."""

import weakref

from ._errors import failure, numbers, wrong
from ._kvt import ffi, lib
from ._memory import memory_of

_LEFT = []  # (weak reference to a store's Handle, address): regions that could not end yet


def _end(owner, address):
    """Ends a region that was made. False: not now, because a call names it or its store closes."""
    handle = owner()
    if handle is not None:
        status = lib.guarded_kvt_region_free(handle.raw, address)
        if status != lib.KVT_E_STATE:
            return status != lib.KVT_BUSY
        if handle.state < 0:
            return True  # the parent's
    return lib.kvt_region_free(ffi.NULL, address) == lib.KVT_OK


def _end_left(*more):
    """Ends these and what was left. A destructor may run within itself, so each is taken out."""
    ending = list(more)
    while _LEFT:
        try:
            ending.append(_LEFT.pop())
        except IndexError:  # another thread
            break
    for one in ending:
        if not _end(*one):
            _LEFT.append(one)


class Regions:
    """The part of Store that is about memory; _handle, _owner, _added and _fail are Store's."""

    @numbers
    def region(self, size):
        """Makes memory of `size` bytes, zeroed, as a writable memoryview; numpy.frombuffer and
        torch.frombuffer make arrays of it. A server has it mapped, too, so calls on a connected
        store write and read it without the copy that other buffers take. It may outlive the store,
        and goes when the view and the last array of it do. SpaceError: the server lets a client
        register no more."""
        _end_left()
        made = ffi.new("void **")
        status = lib.guarded_kvt_region_make(self._handle, size, made)
        if status != lib.KVT_OK:
            raise self._fail(status, {
                lib.KVT_E_ARGUMENT: f"a region has 1 byte or more, not {size}",
                lib.KVT_E_SPACE: "the server lets this client register no more memory",
                lib.KVT_BUSY: "a store has 64 regions at most"}.get(status, ""))
        owner = weakref.ref(self._owner)
        kept = ffi.gc(ffi.cast("char *", made[0]), lambda memory: _end_left((owner, memory)), size)
        return memoryview(ffi.buffer(kept, size))

    @numbers
    def add_region(self, file, memory, *, offset=0):
        """Makes memory that the caller has mapped a region, until end_region or close().

        file: a descriptor of memfd_create, or an object with fileno(), sealed with F_SEAL_SHRINK
        and not against writing. memory: the writable buffer that is its mapping from `offset`
        on, whole pages; it stays exported. UnsupportedError: the file is not so, and calls copy."""
        held = memory_of(memory, writable=True)
        try:
            self._add(file, offset, held)
        except BaseException:
            held.release()
            raise
        self._added[int(ffi.cast("uintptr_t", held.address))] = held

    def _add(self, file, offset, held):
        descriptor = file if isinstance(file, int) else file.fileno()
        status = lib.guarded_kvt_region_add(self._handle, descriptor, offset, held.bytes,
                                            held.address)
        if status != lib.KVT_OK:
            raise self._fail(status, {
                lib.KVT_E_UNSUPPORTED: "a connected store shares memory of memfd_create that is "
                                       "sealed with F_SEAL_SHRINK and not against writing",
                lib.KVT_E_ARGUMENT: "no such file, or no whole pages of it",
                lib.KVT_BUSY: "a store has 64 regions at most"}.get(status, ""))

    def end_region(self, memory):
        """Ends a region of add_region, whose memory the server then has no more. BusyError: a call
        under way uses it."""
        address = int(ffi.cast("uintptr_t", memory_of(memory).address))
        if address not in self._added:
            raise wrong("no region of add_region begins there")
        status = lib.guarded_kvt_region_free(self._handle, ffi.cast("void *", address))
        if status != lib.KVT_OK:
            raise self._fail(status, "a call under way uses the region"
                             if status == lib.KVT_BUSY else "")
        self._added.pop(address).release()

    def _end_added(self):
        """Lets go of what was added, once the store is closed."""
        for address, held in self._added.items():
            lib.kvt_region_free(ffi.NULL, ffi.cast("void *", address))
            held.release()
        self._added.clear()
