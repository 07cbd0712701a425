/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shared_memory.h - memory that two processes map: areas that the server makes, and a client's
 * memory that the server takes by descriptor only where the client cannot take it away again
 * (docs/SERVE.md, Memory). And the bells that wake the other side.
 *
 * Thread rule: any thread.
 */
#ifndef SERVE_WIRE_SHARED_MEMORY_H
#define SERVE_WIRE_SHARED_MEMORY_H

#include <kvterrace/status.h>
#include <stddef.h>
#include <stdint.h>

/* Memory with a name for whoever lists descriptors, zeroed, whose size cannot change any more.
 * bytes is a multiple of a page. KVT_OK; KVT_E_ARGUMENT; KVT_E_UNSUPPORTED (no such memory here);
 * KVT_E_MEMORY (no descriptor, too). */
KVT_NODISCARD kvt_status wire_memory_make(const char *name, uint64_t bytes, int *descriptor_out);

/* Who may still change the size of memory that is mapped. */
typedef enum wire_sealed {
    WIRE_SEALED_SHRINK = 1, /* it may grow: a client's */
    WIRE_SEALED_SIZE = 2    /* nobody: an area */
} wire_sealed;

/*
 * Maps memory that came by descriptor, for reading and writing; the descriptor stays the caller's.
 * The seals are asked for first: a descriptor without them may be of a file system that does not
 * answer, and nothing else is asked of it.
 *   offset, bytes   whole pages of the memory; of huge pages, whole huge ones
 * KVT_OK; KVT_E_UNSUPPORTED (it is not sealed so, or is sealed against writing); KVT_E_ARGUMENT
 * (beyond its end; no whole pages); KVT_E_READ_ONLY (opened for reading alone); KVT_E_MEMORY (no
 * room for the mapping, or no huge pages left).
 */
KVT_NODISCARD kvt_status wire_memory_map(int descriptor, uint64_t offset, uint64_t bytes,
                                         wire_sealed sealed, void **address_out);

/* Bytes of a page of memory whose seals have been read: of other files the question may wait. 0: it
 * cannot be told. */
uint64_t wire_memory_page(int descriptor);

/* bytes as mapped. NULL is allowed. */
void wire_memory_unmap(void *address, uint64_t bytes);

/* A bell: an eventfd. KVT_OK; KVT_E_MEMORY. */
KVT_NODISCARD kvt_status wire_bell_make(int *bell_out);

/* Rings it. Waits only when the other side has made it so, and until a signal's handler has run:
 * then KVT_E_CANCELLED. KVT_OK; KVT_E_IO (it is no bell). */
KVT_NODISCARD kvt_status wire_bell_ring(int bell);

/* Makes it readable no longer; for the side that trusts the other one. */
void wire_bell_clear(int bell);

#endif
