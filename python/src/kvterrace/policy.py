# SPDX-License-Identifier: Apache-2.0
"""The decision engine alone, for those who keep their own bytes: numbers in, plans out.

    from kvterrace.policy import Option, Policy

    with Policy(tiers={"dram": 64 << 30, "ssd": 1 << 40}) as policy:
        outcome, moves = policy.admit(now, handle, [
            Option(load_seconds=0.5),                                # not stored: recompute
            Option(bytes={"dram": 32 << 20}, load_seconds=0.002),
            Option(bytes={"ssd": 32 << 20}, load_seconds=0.010)])
        for move in moves:                                           # in order
            carry_out(move)
            policy.commit(move)                                      # or policy.abort(move)

`Policy` is policy.h: it touches no byte, no clock and no device; entries are named by numbers of
the caller's. `BlockCache` is a Policy for a cache of equal blocks that takes every block in and
asks for victims, as serving engines have one.

Times are seconds on any clock that does not run backwards; sizes are bytes.
"""

import hashlib
import threading
import time
from collections.abc import Mapping
from typing import NamedTuple

from ._calls import Handle
from ._convert import TIERS, new, plain, variant_name, variant_of
from ._errors import encoded, failure, numbers, wrong
from ._kvt import ffi, lib
from ._store import _HINTS, Outcome

__all__ = ["BlockCache", "Move", "Option", "Plan", "Policy", "Tier", "names"]

_KINDS = {lib.KVT_MOVE_PUT: "put", lib.KVT_MOVE_CHANGE: "change", lib.KVT_MOVE_EVICT: "evict"}
_PLACES = [name for name in TIERS if name != "none"]
_HANDLE_MASK = (1 << 64) - 1


class Tier(NamedTuple):
    """A level that entries can live on. Speeds are bytes per second; 0 where they are not known."""

    capacity_bytes: int
    read_bytes_per_s: float = 0.0
    write_bytes_per_s: float = 0.0
    request_seconds: float = 0.0  # of one read beside its bytes


class Option(NamedTuple):
    """What an entry could be. The first option of an entry is to be not stored: bytes None,
    load_seconds those of recomputing it.

    bytes: stored bytes by tier, {"dram": 1 << 20}; read_bytes: of one get, None for all of them.
    loss: 1 - quality, 0 to 1, and its bound loss_upper, 0 for the same. made_from, kept_from: bits
    of other options, as policy.h says.
    """

    variant: str = "raw"
    bytes: Mapping[str, int] | None = None
    read_bytes: Mapping[str, int] | None = None
    load_seconds: float = 0.0
    decode_seconds: float = 0.0
    encode_seconds: float = 0.0
    loss: float = 0.0
    loss_upper: float = 0.0
    made_from: int = 0
    kept_from: int = 0


class Move:
    """One step of a plan, to be carried out and then committed or aborted, in the plan's order."""

    __slots__ = ("_made", "id", "handle", "kind")

    def __init__(self, made):
        self._made = ffi.new("kvt_move *", made)
        self.id, self.handle, self.kind = made.id, made.handle, _KINDS[made.kind]

    @property
    def source(self):
        """The number of the option that the entry is in now; 0: not stored."""
        return getattr(self._made, "from")

    @property
    def target(self):
        """The number of the option that the entry is to become; 0: not stored."""
        return self._made.to

    @property
    def variant(self):
        """The name of the variant that the entry is to be stored in."""
        return variant_name(self._made.to_variant)

    @property
    def gain(self):
        """Seconds saved per second by the target beside the source; 0 where a policy has none."""
        return self._made.gain

    def bytes(self, which="to"):
        """Bytes by tier: "from" as stored now, "to" as stored then, "kept" of both in place."""
        if which not in ("from", "to", "kept"):
            raise wrong(f"bytes are of from, to or kept, not {which!r}")
        of = getattr(self._made, f"{which}_bytes")
        return {name: of[TIERS[name]] for name in _PLACES if of[TIERS[name]]}

    def __repr__(self):
        text = ffi.new("char[512]")
        lib.kvt_move_format(self._made, text, 512)
        return f"Move({ffi.string(text).decode()})"


class Plan(NamedTuple):
    """What was decided of an entry, and the moves that carry it out."""

    outcome: Outcome
    moves: list[Move]


def names():
    """The names of all policies."""
    found, index = [], 0
    while lib.kvt_policy_name_get(index) != ffi.NULL:
        found.append(ffi.string(lib.kvt_policy_name_get(index)).decode())
        index += 1
    return found


def _put(struct, values):
    for name, value in values.items():
        try:
            setattr(struct, name, value)
        except (OverflowError, TypeError) as error:
            raise wrong(f"{name} is out of range: {error}") from error


def _by_tier(array, sizes, what):
    for name, size in (sizes or {}).items():
        if name not in _PLACES:
            raise wrong(f"{what} are by tier, one of {', '.join(_PLACES)}, not {name!r}")
        try:
            array[TIERS[name]] = size
        except (OverflowError, TypeError) as error:
            raise wrong(f"{what} are out of range: {error}") from error


def _options(options):
    options = list(options)
    if not all(isinstance(one, Option) for one in options):
        raise wrong("options are Options, the first one not stored")
    made = ffi.new("kvt_option[]", len(options))
    for place, one in zip(made, options):
        place.variant = variant_of(one.variant)[0]
        _by_tier(place.bytes, one.bytes, "bytes")
        _by_tier(place.read_bytes, one.bytes if one.read_bytes is None else one.read_bytes,
                 "read_bytes")
        _put(place, {name: getattr(one, name) for name in (
            "load_seconds", "decode_seconds", "encode_seconds", "loss", "loss_upper", "made_from",
            "kept_from")})
    if options and not options[0].bytes:
        made[0].variant.codec = 0  # as NONE has it
    return made, len(options)


def _instant(now):
    try:
        return int(now * 1e9)
    except (TypeError, ValueError, OverflowError):
        raise wrong("a time is a number of seconds") from None


class Policy:
    """A decision engine: greedy multiple-choice placement by utility, or one of names().

    tiers: {"dram": bytes} or {"dram": Tier(...)}; those not named are absent. holes: True when a
    prefix with holes is of use. The other keywords are those of kvt_policy_config: alpha_seconds,
    alpha_prefills, hysteresis, high_watermark, low_watermark, entries_expected, ghosts_max, seed.
    variant: what policies that choose none store.

    moves_max bounds every plan. Any thread may make any call; each waits for those before it.
    """

    def __init__(self, name="utility", *, tiers, holes=False, variant="raw", moves_max=256,
                 **settings):
        config, keep = new("kvt_policy_config"), ffi.new("char[]", encoded(name, "a policy's name"))
        lib.kvt_policy_config_init_sized(config, ffi.sizeof("kvt_policy_config"))
        config.name, config.holes = keep, int(bool(holes))
        config.allocator.resize = ffi.addressof(lib, "kvt_memory_resize")
        config.variant = variant_of(variant)[0]
        for tier, facts in dict(tiers).items():
            if tier not in _PLACES:
                raise wrong(f"tiers are {', '.join(_PLACES)}, not {tier!r}")
            facts = facts if isinstance(facts, Tier) else Tier(facts)
            _put(config.tiers[TIERS[tier]], facts._asdict())
        allowed = {"alpha_seconds", "alpha_prefills", "hysteresis", "high_watermark",
                   "low_watermark", "entries_expected", "ghosts_max", "seed"}
        if set(settings) - allowed:
            raise TypeError(f"Policy has no setting {sorted(set(settings) - allowed)}; it has "
                            f"{sorted(allowed)}")
        _put(config, settings)
        if not isinstance(moves_max, int) or not 1 <= moves_max <= 1 << 20:
            raise wrong("moves_max is 1 to 2^20")
        made, message = ffi.new("kvt_policy **"), ffi.new("char[256]")
        status = lib.kvt_policy_open(config, made, message, 256)
        if status != lib.KVT_OK:
            raise failure(status, ffi.string(message).decode())
        raw = lib.kvtpy_new(made[0])
        if raw == ffi.NULL:
            lib.kvt_policy_close(made[0])
            raise failure(lib.KVT_E_MEMORY)
        self._owner, self._handle = Handle(raw, lib.kvtpy_policy_close), raw
        self._lock, self.name = threading.RLock(), str(name)
        self._entry = new("kvt_policy_entry")
        self._moves = ffi.new("kvt_move[]", moves_max)
        self._plan = ffi.new("kvt_plan *", {"moves": self._moves, "capacity": moves_max})

    # ---- life ----

    def close(self):
        """Forgets everything. A second close does nothing."""
        self._owner.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def _fail(self, status, message=""):
        if status == lib.KVT_E_STATE and self._owner.state != 1:
            message = ("the policy is closed" if self._owner.state == 0 else
                       "the policy belongs to the process that this one was forked from")
        raise failure(status, message)

    def _check(self, status, message=""):
        """True for KVT_OK, False for a miss."""
        if status == lib.KVT_OK:
            return True
        if status == lib.KVT_MISS:
            return False
        return self._fail(status, message)

    def _taken(self):
        plan = self._plan
        return [Move(plan.moves[index]) for index in range(plan.count)] if plan.count else []

    # ---- entries ----

    @numbers
    def ladder(self, options):
        """The number of options that many entries share; option 0's seconds come with each."""
        made, count = _options(options)
        number = ffi.new("uint32_t *")
        with self._lock:
            self._check(lib.guarded_kvt_policy_ladder_add(self._handle, made, count, number),
                        "options are out of range, or the first is stored")
        return number[0]

    def _fill(self, handle, options, ladder, parent, tokens, request_tokens, recompute_seconds,
              sensitivity, class_id, tenant):
        entry = self._entry
        try:
            entry.handle, entry.parent, entry.tokens = handle, parent, tokens
            entry.request_tokens, entry.recompute_seconds = request_tokens, recompute_seconds
            entry.sensitivity, entry.class_id, entry.tenant = sensitivity, class_id, tenant
            entry.ladder, entry.option_count, entry.options = ladder, 0, ffi.NULL
        except (OverflowError, TypeError) as error:
            raise wrong(f"a number of the entry is out of range: {error}") from error
        made = None
        if options is not None:
            made, entry.option_count = _options(options)
            entry.options = made
        return made

    @numbers
    def admit(self, now, handle, options=None, *, ladder=0, parent=0, tokens=0, request_tokens=0,
              recompute_seconds=0.0, sensitivity=0.0, class_id=0, tenant=0):
        """Offers a new entry, which counts as one use: a Plan. STORED: the last move puts it;
        REFUSED: it is not worth it; EXISTS: it is stored already.

        handle: a number above 0. options, or a ladder with recompute_seconds. parent: the handle of
        the entry with the tokens before, or 0. tokens of the entry and of its requests; 0: not
        said.
        """
        with self._lock:
            _keep = self._fill(handle, options, ladder, parent, tokens, request_tokens,
                               recompute_seconds, sensitivity, class_id, tenant)
            status = lib.guarded_kvt_policy_admit(self._handle, _instant(now), self._entry,
                                                  self._plan)
            if status == lib.KVT_OK:
                return Plan(Outcome.STORED, self._taken())
            if status in (lib.KVT_REFUSED, lib.KVT_EXISTS):
                return Plan(Outcome.REFUSED if status == lib.KVT_REFUSED else Outcome.EXISTS, [])
            return self._fail(status, "a number of the entry or of its options is out of range")

    @numbers
    def adopt(self, now, handle, option, options=None, *, ladder=0, parent=0, tokens=0,
              request_tokens=0, recompute_seconds=0.0, sensitivity=0.0, class_id=0, tenant=0):
        """Takes over an entry that is stored already in option number `option`; no use is counted.
        False: it was there. SpaceError: it does not fit."""
        with self._lock:
            _keep = self._fill(handle, options, ladder, parent, tokens, request_tokens,
                               recompute_seconds, sensitivity, class_id, tenant)
            if not isinstance(option, int) or not 0 <= option <= 255:
                raise wrong("option is the number of an option")
            status = lib.guarded_kvt_policy_adopt(self._handle, _instant(now), self._entry, option)
            return status != lib.KVT_EXISTS and \
                self._check(status, "the entry is out of range, or does not fit")

    @numbers
    def access(self, now, handle):
        """Counts a use: moves that improve the entry's place, or None when it is not stored. Feed a
        prefix from its root, each entry once."""
        with self._lock:
            status = lib.guarded_kvt_policy_access(self._handle, _instant(now), handle, self._plan)
            return self._taken() if self._check(status) else None

    @numbers
    def promote(self, now, handle, tier="dram"):
        """Offers to move an entry up for a use that is expected: a Plan, or None when it is not
        stored."""
        if tier not in _PLACES:
            raise wrong(f"tier is one of {', '.join(_PLACES)}, not {tier!r}")
        with self._lock:
            status = lib.guarded_kvt_policy_promote(self._handle, _instant(now), handle,
                                                    TIERS[tier], self._plan)
            if status == lib.KVT_REFUSED:
                return Plan(Outcome.REFUSED, [])
            return Plan(Outcome.STORED, self._taken()) if self._check(status) else None

    @numbers
    def tick(self, now, moves_max=None, bytes_max=1 << 62):
        """Background work: moves that make room above the watermarks, or improve places."""
        with self._lock:
            most = self._plan.capacity if moves_max is None else min(moves_max, self._plan.capacity)
            self._check(lib.guarded_kvt_policy_tick(self._handle, _instant(now), most, bytes_max,
                                                    self._plan))
            return self._taken()

    @numbers
    def commit(self, move, actual=None):
        """A move was carried out. actual: the bytes really stored by tier, None for those planned.
        SpaceError: they do not fit, and the move is still to be aborted."""
        sizes = ffi.NULL
        if actual is not None:
            sizes = ffi.new("uint64_t[]", lib.KVT_TIER_PLACES)
            _by_tier(sizes, actual, "actual bytes")
        with self._lock:
            self._check(lib.guarded_kvt_policy_commit(self._handle, _number(move), sizes),
                        "no such move is in flight, or its bytes do not fit")

    @numbers
    def abort(self, move):
        """A move was not carried out: its entry is as before. Abort the rest of the plan, too."""
        with self._lock:
            self._check(lib.guarded_kvt_policy_abort(self._handle, _number(move)),
                        "no such move is in flight")

    @numbers
    def remove(self, handle):
        """Forgets an entry that is gone. False: it was not known."""
        with self._lock:
            return self._check(lib.guarded_kvt_policy_remove(self._handle, handle))

    @numbers
    def pin(self, handle):
        """Keeps an entry out of every plan until it is unpinned as often. False: not stored."""
        with self._lock:
            return self._check(lib.guarded_kvt_policy_pin(self._handle, handle))

    @numbers
    def unpin(self, handle):
        """Takes one pin back. False: there is none."""
        with self._lock:
            return self._check(lib.guarded_kvt_policy_unpin(self._handle, handle))

    @numbers
    def option(self, handle):
        """The number of the option that an entry is stored in; 0: not stored."""
        with self._lock:
            found = lib.kvtpy_policy_resident(self._handle, handle)
            return found if found >= 0 else self._fail(lib.KVT_E_STATE)

    # ---- what is known of uses ----

    @numbers
    def set_rate(self, handle, uses_per_s):
        """Sets how often an entry is used, for callers that know better. False: not known."""
        with self._lock:
            return self._check(lib.guarded_kvt_policy_rate_set(self._handle, handle, uses_per_s),
                               "a rate is 0 to 1e12")

    @numbers
    def set_prior(self, class_id, uses):
        """Sets how many uses beside its first a new entry of a class is taken to have had."""
        with self._lock:
            self._check(lib.guarded_kvt_policy_prior_set(self._handle, class_id, uses),
                        "classes are 1 to 65535, uses 0 to 1e6")

    @numbers
    def hint(self, now, handle, kind, seconds=0.0, tenant=0):
        """Says of an entry's next use: "retain", "next_use", "demote", "session_end". False: not
        stored."""
        if kind not in _HINTS:
            raise wrong(f"kind is one of {', '.join(_HINTS)}, not {kind!r}")
        with self._lock:
            return self._check(lib.guarded_kvt_policy_hint(self._handle, _instant(now), handle,
                                                           _HINTS[kind], seconds, tenant),
                               "seconds or tenant are out of range")

    @numbers
    def set_capacity(self, tier, capacity_bytes):
        """Changes a tier's capacity, as when a device fails."""
        if tier not in _PLACES:
            raise wrong(f"tier is one of {', '.join(_PLACES)}, not {tier!r}")
        with self._lock:
            self._check(lib.guarded_kvt_policy_capacity_set(self._handle, TIERS[tier],
                                                            capacity_bytes),
                        "no such tier, or too large a capacity")

    # ---- what it says of itself ----

    @numbers
    def worth(self, handle, tier="dram"):
        """What keeping an entry in a tier is worth, as a dict, or None: uses_per_s, saved_seconds
        of one, per_byte, resident_children."""
        if tier not in _PLACES:
            raise wrong(f"tier is one of {', '.join(_PLACES)}, not {tier!r}")
        worth = new("kvt_policy_worth")
        with self._lock:
            found = self._check(lib.guarded_kvt_policy_worth_get(self._handle, handle, TIERS[tier],
                                                                 worth))
        return plain(worth[0]) if found else None

    @numbers
    def explain(self, now, handle):
        """Why an entry is where it is, as a dict, or None: its options with their terms."""
        explained = new("kvt_explanation")
        with self._lock:
            if not self._check(lib.guarded_kvt_policy_explain(self._handle, _instant(now), handle,
                                                              explained)):
                return None
        said = plain(explained[0])
        said["options"] = said["options"][:explained.option_count]
        return said

    def stats(self):
        """Counters since the open and present gauges, as a dict."""
        stats = ffi.new("kvt_policy_stats *")
        with self._lock:
            if self._owner.state != 1:
                self._fail(lib.KVT_E_STATE)
            lib.guarded_kvt_policy_stats_get(self._handle, stats)
        return plain(stats[0])


def _number(move):
    return move.id if isinstance(move, Move) else move


class BlockCache:
    """Decisions for a cache of `capacity` equal blocks that takes every new block in and asks which
    ones go: what an engine's eviction policy is asked.

    Keys are anything hashable. A block's parent is the key of the block before it in its prefix: a
    block that is followed by stored ones stays, because they are useless without it. Blocks that
    are pinned stay as well. Uses are counted by touch() and insert(); what is learned of a block
    outlives its stay, for as many blocks as ghosts says.

    recompute_seconds, load_seconds: of one block; where they are the same for all, only their order
    counts. clock gives seconds; time.monotonic where it is None.
    """

    def __init__(self, capacity, *, name="utility", recompute_seconds=0.05, load_seconds=0.001,
                 ghosts=None, clock=None, **settings):
        if not isinstance(capacity, int) or not 1 <= capacity <= 1 << 40:
            raise wrong("capacity is a number of blocks, at least 1")
        # Room is made when the caller asks for it, and by a tick: so it is always due.
        settings = {"high_watermark": 0.0, "low_watermark": 0.0, **settings}
        self.policy = Policy(name, tiers={"dram": capacity}, moves_max=4096,
                             ghosts_max=max(capacity, 65536) if ghosts is None else ghosts,
                             entries_expected=min(capacity, 1 << 20), **settings)
        self.capacity, self._clock = capacity, clock or time.monotonic
        self._ladder = self.policy.ladder([Option(), Option(bytes={"dram": 1},
                                                            load_seconds=load_seconds)])
        self._recompute = recompute_seconds
        self._keys = {}  # the key of each handle that is stored
        self._strays = {}  # pins of keys that the policy could not take: the first ones to go

    @staticmethod
    def _handle(key):
        """The number of a key: the same in each process for texts and bytes, too, so that the same
        calls give the same decisions."""
        if isinstance(key, str):
            key = encoded(key, "a key")
        if isinstance(key, bytes):
            return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "little") or 1
        return hash((key,)) & _HANDLE_MASK or 1

    def __len__(self):
        return len(self._keys) + len(self._strays)

    def __contains__(self, key):
        return self._keys.get(self._handle(key), self) == key or key in self._strays

    def touch(self, keys):
        """Counts a use of each block that is stored, a prefix from its root."""
        now = self._clock()
        for key in keys:
            if key in self:
                self._obey(self.policy.access(now, self._handle(key)))

    def insert(self, key, parent=None):
        """Takes a block in, and counts its first use. SpaceError: there is no room; evict first."""
        if key in self:
            return
        if len(self) >= self.capacity:
            raise failure(lib.KVT_E_SPACE, f"{self.capacity} blocks are stored: evict first")
        now, handle = self._clock(), self._handle(key)
        above = self._handle(parent) if parent is not None else 0
        if above not in self._keys:
            above = 0
        entry = {"ladder": self._ladder, "recompute_seconds": self._recompute, "parent": above}
        outcome, moves = self.policy.admit(now, handle, **entry)
        if outcome is Outcome.STORED and len(moves) == 1:
            self.policy.commit(moves[0])
            self._keys[handle] = key
            return
        for move in moves:
            self.policy.abort(move)
        if outcome is Outcome.EXISTS or not self.policy.adopt(now, handle, 1, **entry):
            self._strays[key] = 0  # two keys of one handle
            return
        self._keys[handle] = key

    def evict(self, count, protected=()):
        """Chooses `count` blocks to go and forgets them: their keys, or None when so many cannot
        go, and then none has gone."""
        protected = set(protected)
        gone = [key for key, pins in self._strays.items()
                if pins == 0 and key not in protected][:count]
        held = [self._handle(key) for key in protected if self._keys.get(self._handle(key)) == key]
        held = [handle for handle in held if self.policy.pin(handle)]
        moves, now = [], self._clock()
        try:
            while len(gone) + len(moves) < count:
                found = self.policy.tick(now, count - len(gone) - len(moves))
                if not found:
                    break
                moves += found
        finally:
            for handle in held:
                self.policy.unpin(handle)
        if len(gone) + len(moves) < count:
            for move in reversed(moves):
                self.policy.abort(move)
            return None
        for key in gone:
            del self._strays[key]
        for move in moves:
            self.policy.commit(move)
            gone.append(self._keys.pop(move.handle))
        return gone

    def pin(self, key):
        """Keeps a block from going until it is unpinned as often. False: not stored."""
        if key in self._strays:
            self._strays[key] += 1
            return True
        return key in self and self.policy.pin(self._handle(key))

    def unpin(self, key):
        """Takes one pin back. False: there is none."""
        if key in self._strays:
            self._strays[key] -= self._strays[key] > 0
            return True
        return key in self and self.policy.unpin(self._handle(key))

    def remove(self, key):
        """Forgets a block that is gone. False: it was not stored."""
        if key in self._strays:
            del self._strays[key]
            return True
        if key not in self:
            return False
        del self._keys[self._handle(key)]
        return self.policy.remove(self._handle(key))

    def clear(self):
        """Forgets all blocks; what was learned stays."""
        for handle in list(self._keys):
            self.policy.remove(handle)
        self._keys.clear()
        self._strays.clear()

    def _obey(self, moves):
        for move in moves or ():  # one tier and one form: nothing can be better elsewhere
            self.policy.abort(move)

    def close(self):
        """Ends the engine. A second close does nothing."""
        self.policy.close()
