/* SPDX-License-Identifier: Apache-2.0 */
/*
 * basis.h - bases of the transform codec in a store. A basis is learnt once per model
 * (docs/codecs/transform.md); entries that are stored with it can be read with it alone.
 *
 * Thread rule: any thread.
 */
#ifndef KVTERRACE_BASIS_H
#define KVTERRACE_BASIS_H

#include "kvterrace.h"

#ifdef __cplusplus
extern "C" {
#endif

#define KVT_BASES_MAX 64u /* of one store */

/*
 * Gives a basis to a store, which copies it and keeps the copy until it is closed. A store with a
 * catalog also keeps it as the file CATALOG.basis-XXXXX beside the catalog (the first five digits
 * of its hash), and takes it from there when it is opened again; the file moves with the catalog,
 * and stays until somebody removes it.
 *
 * Entries in a form whose basis the store lacks are misses, and stay; from this call on they are
 * found. No entry is stored in such a form. A ladder's rung of the basis is offered when the
 * profile has its speeds, or when the basis was there at open.
 *   bytes   of a whole .kvtbasis object; not kept
 * KVT_OK; KVT_EXISTS (this very basis is there); KVT_E_ARGUMENT (NULL); KVT_E_CORRUPT,
 * KVT_E_VERSION (the object; nothing was taken); KVT_E_UNSUPPORTED (another basis whose hash begins
 * with the same 20 bits is there); KVT_E_SPACE (KVT_BASES_MAX, or the disk is full); KVT_E_IO;
 * KVT_E_MEMORY; KVT_E_STATE (in a child of fork). Blocking: the file is written durably before the
 * basis is used.
 */
KVT_API KVT_NODISCARD kvt_status kvt_basis_add(kvt_store *store, const void *bytes, uint64_t size);

#ifdef __cplusplus
}
#endif

#endif
