# SPDX-License-Identifier: Apache-2.0
"""What the adapters of engines share."""

from ._errors import failure
from ._kvt import lib


def need_version(engine, found, tested):
    """Refuses an engine of a version that the adapter was not tested with: its interfaces are
    experimental, and a changed one may put bytes where nobody expects them."""
    if found.split("+")[0] not in tested:
        raise failure(lib.KVT_E_UNSUPPORTED,
                      f"this adapter was tested with {engine} {', '.join(tested)}, and this is "
                      f"{engine} {found}: install a tested version, or a newer kvterrace")
