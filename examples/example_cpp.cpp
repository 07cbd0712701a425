// SPDX-License-Identifier: Apache-2.0
// example_cpp.cpp - the public headers from C++17: a key in a space, a store in memory, and the
// space cleared.
#include <kvterrace/key.h>
#include <kvterrace/kvterrace.h>
#include <kvterrace/names.h>

#include <cstdio>
#include <cstring>
#include <vector>

// Puts an entry with a lifetime, asks how large it is, gets it into a buffer of that size, and
// clears its space.
static kvt_status in_and_out(kvt_store *store, const kvt_space_hash &hash,
                             const std::vector<unsigned char> &source,
                             std::vector<unsigned char> &target)
{
    kvt_entry entry{};
    entry.struct_size = sizeof entry;
    entry.layout.dtype = KVT_DTYPE_OPAQUE;
    entry.layout.opaque_bytes = source.size();
    entry.recompute_seconds = 1;
    entry.lifetime_seconds = 3600;
    kvt_status status = kvt_key_make(&hash, "block 0", 7, 0, &entry.key);
    const kvt_view from = kvt_view_packed(source.data(), source.size());
    if (status == KVT_OK) status = kvt_store_put(store, &entry, &from);
    kvt_description what{};
    what.struct_size = sizeof what;
    if (status == KVT_OK) status = kvt_store_describe(store, &entry.key, &what);
    target.resize(what.bytes);
    const kvt_view to = kvt_view_packed(target.data(), target.size());
    if (status == KVT_OK)
        status = kvt_store_get(store, &entry.key, &to, KVT_STORE_DEADLINE, nullptr);
    kvt_clear_filter filter{};
    filter.struct_size = sizeof filter;
    filter.by_space = true;
    filter.space = kvt_space_id(&hash);
    if (status == KVT_OK) status = kvt_store_clear(store, &filter, nullptr);
    if (status == KVT_OK && kvt_store_exists(store, &entry.key) != KVT_MISS) status = KVT_E_STATE;
    return status;
}

int main()
{
    kvt_store_options options;
    kvt_store_options_init(&options);
    options.policy = "lru";
    options.tiers[KVT_TIER_DRAM].capacity_bytes = 16u << 20;
    kvt_store *store = nullptr;
    char message[256] = "";
    if (kvt_store_open(&options, &store, message, sizeof message) != KVT_OK) {
        std::fprintf(stderr, "example_cpp: %s\n", message);
        return 1;
    }
    kvt_space space;
    kvt_space_init(&space);
    space.model = "some model";
    space.dtype = "bf16";
    kvt_space_hash hash;
    std::vector<unsigned char> source(100000, 0x5a), target;
    kvt_status status = kvt_space_make(&space, &hash);
    if (status == KVT_OK) status = in_and_out(store, hash, source, target);
    kvt_store_close(store);
    if (status != KVT_OK || source != target) {
        std::fprintf(stderr, "example_cpp: %s\n", kvt_status_text(status));
        return 1;
    }
    std::printf("C++: %zu bytes in and out\n", target.size());
    return 0;
}
