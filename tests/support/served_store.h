/* SPDX-License-Identifier: Apache-2.0 */
/*
 * served_store.h - a store that a server lends to two clients, which speak by records: one has
 * staging, the other one has none. Each case opens both by serve() and has them closed behind it.
 */
#ifndef TESTS_SERVED_STORE_H
#define TESTS_SERVED_STORE_H

#include "serve_site.h"
#include "store_site.h"

#define ENTRY   SUPPORT_ENTRY_BYTES
#define STAGING (UINT64_C(1) << 20)

static serve_site served;
static site *below;

/* The clients of a case; those that it has not closed are closed behind it. */
static serve_client first, second;

static inline void serve(site_shape shape)
{
    below = site_prepare(shape);
    site_open(below);
    serve_site_begin(&served, below->store);
    below->store = NULL; /* serve_site_end closes it */
    assert_ok(client_hello(&first, served.path));
    assert_ok(client_open_staged(&first, STAGING));
    assert_ok(client_hello(&second, served.path));
    assert_ok(client_open_channel(&second));
}

static inline void serve_memory(void)
{
    serve((site_shape){.memory_bytes = 16 << 20, .staged = true});
}

TEST_BEFORE_EACH
{
    first.socket = second.socket = -1;
}

TEST_AFTER_EACH
{
    client_close(&first);
    client_close(&second);
    serve_site_end(&served);
}

static inline kvt_status put_staged(serve_client *at, uint32_t number)
{
    const kvt_entry entry = support_entry(support_key(number), support_layout, 1);
    const wire_put put = wire_put_of(&entry, KVT_NO_DEADLINE);
    char *staging = at->regions[WIRE_STAGING].address;
    support_fill(number, staging);
    return client_call(at, WIRE_PUT, &entry.key, &put, KVT_PACKED(staging, ENTRY));
}

static inline kvt_status get_staged(serve_client *at, uint32_t number)
{
    static char expected[ENTRY];
    const kvt_key key = support_key(number);
    const wire_get get = {.struct_size = sizeof get, .deadline_ns = KVT_STORE_DEADLINE};
    char *staging = at->regions[WIRE_STAGING].address + 2 * ENTRY;
    memset(staging, 0xee, ENTRY);
    const kvt_status status = client_call(at, WIRE_GET, &key, &get, KVT_PACKED(staging, ENTRY));
    if (status != KVT_OK) return status;
    support_fill(number, expected);
    return memcmp(staging, expected, ENTRY) == 0 ? KVT_OK : KVT_E_CORRUPT;
}

#endif
