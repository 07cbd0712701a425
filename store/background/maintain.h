/* SPDX-License-Identifier: Apache-2.0 */
/*
 * maintain.h - the background's thread (maintain.c).
 *
 * Thread rule: as each function says.
 */
#ifndef STORE_MAINTAIN_H
#define STORE_MAINTAIN_H

#include <kvterrace/kvterrace.h>
#include <stdbool.h>

KVT_NODISCARD kvt_status maintain_start(kvt_store *store);
/* Has the background carry out what is queued now and not after its pause. Lock held. */
void maintain_wake(kvt_store *store);
void maintain_stop(kvt_store *store);

#endif
