# SPDX-License-Identifier: Apache-2.0
"""What a program tells a store beside its entries: tenants, measured losses, bases; and what the
store has learned."""

from ._convert import TIERS, new, plain, variant_of
from ._errors import wrong
from ._kvt import ffi, lib
from ._memory import memory_of
from ._types import Space, check_key


def _numbers(struct, **values):
    """Sets members; a value that does not fit is an ArgumentError."""
    for name, value in values.items():
        try:
            setattr(struct, name, value)
        except (OverflowError, TypeError) as error:
            raise wrong(f"{name} is out of range: {error}") from error


class Tuning:
    """The part of Store that is about decisions; _handle and _need are Store's."""

    def set_tenant(self, tenant, *, alpha_seconds=0.0, alpha_prefills=10.0, loss_limit=1.0,
                   load_limit=0.0, shares=None):
        """Sets what a tenant wants, from now on; nothing survives a restart.

        tenant: its number; 0 is everybody who is none in particular.
        alpha_seconds: seconds that a loss of 1 is worth, as the setting store.alpha; 0: so many
        prefills of what is lost, alpha_prefills, as the setting of that name.
        loss_limit: no variant whose loss may pass this; 1 = any.
        load_limit: no stored form whose load takes more seconds; 0 = any.
        shares: at most so many bytes of a tier, {"dram": bytes}; a tier that is not named is not
        limited.
        """
        limits = new("kvt_tenant")
        _numbers(limits, alpha_seconds=alpha_seconds, alpha_prefills=alpha_prefills,
                 loss_limit=loss_limit, load_limit_seconds=load_limit)
        for name, share in (shares or {}).items():
            if name not in TIERS:
                raise wrong(f"there is no tier {name!r}")
            try:
                limits.share_bytes[TIERS[name]] = share
            except (OverflowError, TypeError) as error:
                raise wrong(f"a share is a number of bytes: {error}") from error
        number = ffi.new("uint32_t[1]")
        try:
            number[0] = tenant
        except (OverflowError, TypeError) as error:
            raise wrong(f"no such tenant: {tenant!r}") from error
        self._need(lib.guarded_kvt_tenant_set(self._handle, number[0], limits),
                   "a tenant's limits are out of range")

    def give_space(self, space, tenant):
        """Gives a space (a Space or its id) to a tenant, for puts from now on that name none; 0
        takes it back."""
        number = space.id if isinstance(space, Space) else space
        try:
            status = lib.guarded_kvt_space_set(self._handle, number, tenant)
        except (OverflowError, TypeError) as error:
            raise wrong(f"no such space or tenant: {error}") from error
        self._need(status, "no such tenant, or too many spaces are given")

    def observe_quality(self, key, variant, loss, weight=1.0):
        """Tells what an answer lost that was made from an entry in a lossy form. False: the entry
        is not stored any more.

        variant: the one that was read, as `describe` names it, or another of the store's ladder.
        loss: 1 - quality, in 0 to 1, against the answer from exact KV.
        weight: of the evidence; 1 = about as much text as one entry had in the profile's
        measurement.
        """
        made = variant_of(variant)
        try:
            loss, weight = float(loss), float(weight)
        except (TypeError, ValueError) as error:
            raise wrong(f"loss and weight are numbers: {error}") from error
        status = lib.guarded_kvt_quality_observe(self._handle, check_key(key), made[0], loss,
                                                 weight)
        return self._need(status, "" if status == lib.KVT_E_UNSUPPORTED else
                          "a loss is from 0 to 1, of a lossy variant that the store has")

    def add_basis(self, data):
        """Adds a basis of the transform codec: a whole .kvtbasis object in any buffer, which is not
        kept. With a catalog it is written beside that, durably. False: it is there already."""
        memory = memory_of(data)
        status = lib.guarded_kvt_basis_add(self._handle, memory.address, memory.bytes)
        return status != lib.KVT_EXISTS and self._need(
            status, "" if status == lib.KVT_E_UNSUPPORTED else "no basis was taken")

    def class_stats(self, class_id):
        """What was learned of a class of entries, 0 to 63, as a dict; None past the last class."""
        stats = new("kvt_class_stats")
        try:
            status = lib.guarded_kvt_class_stats_get(self._handle, class_id, stats)
        except (OverflowError, TypeError) as error:
            raise wrong(f"no such class: {class_id!r}") from error
        return plain(stats[0]) if status != lib.KVT_END and self._need(status) else None
