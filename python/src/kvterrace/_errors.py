# SPDX-License-Identifier: Apache-2.0
"""Exceptions: one class for each group of statuses, with the status and the library's message."""

import functools

from ._kvt import ffi, lib


class Error(Exception):
    """A call failed. `status` is the name, as "KVT_E_SPACE", `code` its number, `message` says what
    was wrong."""

    def __init__(self, code, message=""):
        self.code = code
        self.status = ffi.string(lib.kvt_status_name(code)).decode()
        self.message = message or ffi.string(lib.kvt_status_text(code)).decode()
        super().__init__(f"{self.status}: {self.message}")

    def __reduce__(self):
        return type(self), (self.code, self.message)


class ArgumentError(Error, ValueError):
    """An argument is outside what the call documents: size, type, view, number."""


class ConfigError(Error, ValueError):
    """A setting is unknown, malformed or without effect."""


class UnsupportedError(Error):
    """Valid, but not available in this build, on this machine or for this entry."""


class StateError(Error, RuntimeError):
    """The object is closed, or belongs to the process that this one was forked from."""


class MemoryShortError(Error, MemoryError):
    """An allocation failed in the library."""


class SpaceError(Error):
    """A device, tier or buffer is too small or full."""


class DeviceError(Error):
    """A read or write failed, or the device is missing or refuses writes."""


class LockedError(DeviceError):
    """A device or catalog is open elsewhere."""


class CorruptError(Error):
    """Bytes fail their checksum or their format, or are of an unknown version."""


class MismatchError(Error):
    """Sound bytes that belong to another store, machine or layout."""


class DatabaseError(Error):
    """SQLite reports an error, or an input file is malformed."""


class BusyError(Error):
    """A lease holds the entry: try again when it has ended."""


_CLASSES = {
    lib.KVT_BUSY: BusyError, lib.KVT_E_ARGUMENT: ArgumentError, lib.KVT_E_CONFIG: ConfigError,
    lib.KVT_E_UNSUPPORTED: UnsupportedError, lib.KVT_E_STATE: StateError,
    lib.KVT_E_MEMORY: MemoryShortError, lib.KVT_E_SPACE: SpaceError, lib.KVT_E_IO: DeviceError,
    lib.KVT_E_GONE: DeviceError, lib.KVT_E_READ_ONLY: DeviceError, lib.KVT_E_LOCKED: LockedError,
    lib.KVT_E_TIMEOUT: DeviceError, lib.KVT_E_CORRUPT: CorruptError,
    lib.KVT_E_VERSION: CorruptError, lib.KVT_E_MISMATCH: MismatchError,
    lib.KVT_E_DATABASE: DatabaseError, lib.KVT_E_PARSE: DatabaseError,
}


def failure(code, message=""):
    """The exception for a status."""
    return _CLASSES.get(code, Error)(code, message)


def numbers(method):
    """A method that hands its numbers to C: one beyond its type there is an ArgumentError."""
    @functools.wraps(method)
    def checked(*arguments, **options):
        try:
            return method(*arguments, **options)
        except OverflowError as error:
            raise wrong(f"a number is out of range: {error}") from error
    return checked


def encoded(text, what):
    """A text as bytes for C, or ArgumentError: no text, half of a pair of surrogates, a zero."""
    if not isinstance(text, str):
        raise wrong(f"{what} is a text, not {type(text).__name__}")
    if "\0" in text:
        raise wrong(f"{what} is a text without a zero")
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise wrong(f"{what} has a lone surrogate, which no UTF-8 has: {text!r}") from error


def wrong(message):
    """The exception for an argument that the package itself refuses."""
    return ArgumentError(lib.KVT_E_ARGUMENT, message)


def refuse(message):
    """The exception for what an adapter cannot keep, or not without a wrong answer."""
    return failure(lib.KVT_E_UNSUPPORTED, message)
