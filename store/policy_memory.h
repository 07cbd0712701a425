/*
 * policy_memory.h - memory for the decision engine: plain for small tables, large pages for those
 * where every call lands somewhere else. Any thread.
 */
#ifndef STORE_POLICY_MEMORY_H
#define STORE_POLICY_MEMORY_H

#include <stddef.h>

/* A kvt_allocator's resize; the context is not used. */
void *policy_memory_resize(void *context, void *memory, size_t old_bytes, size_t bytes);

#endif
