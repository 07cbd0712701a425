# SPDX-License-Identifier: Apache-2.0
"""Buffers and tensors as memory: an address and a number of bytes, without a copy.

A `Memory` keeps what it was made from exported: a bytearray cannot be resized meanwhile, a
memoryview not be released, a tensor not be freed.
"""

import sys

from . import _native
from ._errors import failure, wrong
from ._kvt import ffi, lib

# Devices of DLPack whose memory the processor reads and writes: CPU, and pinned host memory.
_HOST_DEVICES = {1, 3, 11}
_DEVICE_NAMES = {2: "CUDA", 4: "OpenCL", 7: "Vulkan", 8: "Metal", 10: "ROCm", 13: "CUDA managed",
                 14: "oneAPI"}
# Formats of buffers and type codes of DLPack as element types of a layout; None: plain bytes.
_FORMATS = {"e": "fp16", "f": "fp32", "d": "fp64", "g": "fp128",
            "Zf": "complex", "Zd": "complex", "Zg": "complex"}
_INTEGERS = frozenset("hHiIlLqQnN")
_FLOAT_CODES = {(2, 16): "fp16", (2, 32): "fp32", (2, 64): "fp64", (4, 16): "bf16",
                **{(code, 8): f"fp8 of DLPack's code {code}" for code in range(7, 15)},
                (10, 8): "fp8"}
# Element types of numpy arrays that buffers and DLPack do not know, as the package ml_dtypes has
# them.
_NAMES = {"bfloat16": "bf16", "float8_e4m3fn": "fp8"}
_ORDERS = "@=<" if sys.byteorder == "little" else "@=>"
_SIZES = {"opaque": 1, "fp8": 1, "fp16": 2, "bf16": 2, "fp32": 4}


class Memory:
    """address, bytes, writable, kind (an element type, "intN" for N bytes, or None for bytes)."""

    __slots__ = ("address", "bytes", "writable", "kind", "keep")

    def __init__(self, address, size, writable, kind, keep):
        self.address, self.bytes, self.writable = address, size, writable
        self.kind, self.keep = kind, keep

    def release(self):
        if self.keep is not None:
            if isinstance(self.keep, ffi.CData):
                ffi.release(self.keep)
            self.keep, self.address, self.bytes = None, ffi.NULL, 0

    def check_kind(self, dtype):
        """Refuses elements that are not those of a layout. Bytes fit any; integers fit elements of
        their size, as numpy has no bfloat16."""
        if self.kind is None or self.kind == dtype:
            return
        if self.kind.startswith("int") and (dtype == "opaque" or
                                            int(self.kind[3:]) == _SIZES.get(dtype)):
            return
        if dtype == "opaque":
            return
        raise wrong(f"the buffer's elements are {self.kind}, the entry's are {dtype}")


def _buffer_kind(size, format_):
    if size == 1:
        return None
    bare = format_[1:] if format_[:1] in _ORDERS else format_
    if bare in _INTEGERS:
        return f"int{size}"
    if bare in _FORMATS:
        return _FORMATS[bare]
    # Objects are pointers: bytes of an entry among them would crash the interpreter. Records,
    # texts and numbers in the other byte order are no elements of a layout either.
    raise wrong(f"the buffer's elements are no numbers of this machine (format {format_!r})")


def _from_dlpack(source, writable):
    try:
        device, _ = source.__dlpack_device__()
        device = int(device)
    except (TypeError, ValueError, RuntimeError, BufferError) as error:  # a tensor without data
        raise failure(lib.KVT_E_UNSUPPORTED, f"the tensor lies nowhere: {error}") from error
    if device not in _HOST_DEVICES:
        name = _DEVICE_NAMES.get(device, f"DLPack device {device}")
        raise failure(lib.KVT_E_UNSUPPORTED,
                      f"the tensor lies in {name} memory: copy it to the host first")
    try:
        try:
            capsule = source.__dlpack__(max_version=(1, 0))
        except TypeError:
            capsule = source.__dlpack__()
        address, size, device, _, code, bits, read_only, owner = _native.read(capsule)
    except (BufferError, RuntimeError, ValueError) as error:
        raise wrong(f"the tensor gives no memory: {error}") from error
    if device not in _HOST_DEVICES:
        raise failure(lib.KVT_E_UNSUPPORTED, "the tensor lies on a device")
    if writable and read_only:
        raise wrong("the tensor is read-only")
    if code in (0, 1, 6):
        kind = None if bits == 8 else f"int{bits // 8}"
    else:
        kind = _FLOAT_CODES.get((code, bits), f"DLPack type {code} of {bits} bits")
    return Memory(ffi.cast("char *", address), size, not read_only, kind, owner)


def _from_array(source, writable):
    """The memory of a numpy array of an element type that numpy itself does not have; None: it is
    no such array."""
    kind, base = getattr(source, "dtype", None), getattr(source, "__array_interface__", None)
    size, name = getattr(kind, "itemsize", 0), getattr(kind, "name", None)
    if not isinstance(base, dict) or not isinstance(name, str) or size not in (1, 2, 4, 8):
        return None
    memory = memory_of(source.view(f"u{size}"), writable)
    return Memory(memory.address, memory.bytes, memory.writable, _NAMES.get(name, name),
                  memory.keep)


def memory_of(source, writable=False):
    """The memory of a contiguous buffer or DLPack tensor. ArgumentError: no such thing, gaps
    between its elements, or read-only where it is to be written."""
    if isinstance(source, Memory):
        if writable and not source.writable:
            raise wrong("the buffer is read-only")
        return source
    try:
        with memoryview(source) as view:
            read_only, size, format_ = view.readonly, view.itemsize, view.format
    except (TypeError, ValueError, BufferError) as error:
        # No buffer, a memoryview that was released, or elements that no buffer has.
        found = _from_array(source, writable)
        if found is not None:
            return found
        if hasattr(source, "__dlpack__") and hasattr(source, "__dlpack_device__"):
            return _from_dlpack(source, writable)
        if isinstance(error, TypeError):
            kind = type(source).__name__
            raise wrong(f"{kind} is neither a buffer nor a DLPack tensor") from None
        raise wrong(str(error)) from error
    kind = _buffer_kind(size, format_)
    if writable and read_only:
        raise wrong("the buffer is read-only")
    try:
        keep = ffi.from_buffer("char[]", source, require_writable=writable)
    except (ValueError, BufferError, TypeError) as error:
        raise wrong(f"the buffer cannot be used: {error}") from error
    return Memory(keep, len(keep), not read_only, kind, keep)
