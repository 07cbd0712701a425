# SPDX-License-Identifier: Apache-2.0
# Types of kvterrace.codec; units and rules are in its docstrings.
from collections.abc import Iterable, Sequence
from os import PathLike
from typing import Any, NamedTuple, Protocol

from typing_extensions import Buffer

from . import Key, Layout

class _Tensor(Protocol):
    def __dlpack__(self, **options: Any) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...

_Memory = Buffer | _Tensor

class Info(NamedTuple):
    layout: Layout
    variant: str
    key: Key
    generation: int
    first_position: int
    record_bytes: int
    payload_bytes: int
    source_bytes: int
    decoded_bytes: int
    stored_tokens: int
    segments: int
    raw_segments: int
    groups: int
    bits_per_element: float
    basis: str | None = ...

class Basis:
    hash: str
    span: str
    layers: int
    kv_heads: int
    head_dim: int
    rotary_dim: int
    sides: int
    model: str
    tokens: int
    digest: str
    bytes: int
    def __init__(self, data: _Memory) -> None: ...
    @classmethod
    def open(cls, path: str | PathLike[str]) -> Basis: ...
    def variant(self, step: float = 0.5) -> str: ...

def bound(layout: Layout, variant: str = "lossless", *, sink_tokens: int | None = None,
          recent_tokens: int = 0, chain_tokens: int = 0, first_position: int = 0,
          scores: Iterable[Sequence[float]] | None = None,
          levels: Iterable[Sequence[int]] | None = None,
          bases: Iterable[Basis] = ()) -> int: ...
def encode(data: _Memory, layout: Layout | None = None, variant: str = "lossless", *,
           key: bytes | None = None, generation: int = 1, first_position: int = 0,
           sink_tokens: int | None = None, recent_tokens: int = 0, chain_tokens: int = 0,
           scores: Iterable[Sequence[float]] | None = None,
           levels: Iterable[Sequence[int]] | None = None,
           bases: Iterable[Basis] = ()) -> memoryview: ...
def encode_into(record: _Memory, data: _Memory, layout: Layout | None = None,
                variant: str = "lossless", *, key: bytes | None = None, generation: int = 1,
                first_position: int = 0, sink_tokens: int | None = None, recent_tokens: int = 0,
                chain_tokens: int = 0, scores: Iterable[Sequence[float]] | None = None,
                levels: Iterable[Sequence[int]] | None = None,
                bases: Iterable[Basis] = ()) -> int: ...
def inspect(record: _Memory, *, verify: bool = False) -> Info: ...
def decode(record: _Memory, *, key: bytes | None = None, generation: int = 1,
           bases: Iterable[Basis] = ()) -> bytearray: ...
def decode_into(record: _Memory, target: _Memory, *, key: bytes | None = None,
                generation: int = 1, bases: Iterable[Basis] = ()) -> Info: ...
def derive(record: _Memory, variant: str, *, bases: Iterable[Basis] = ()) -> memoryview: ...
def kept_tokens(record: _Memory, layer: int) -> list[int]: ...
