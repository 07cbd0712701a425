// SPDX-License-Identifier: Apache-2.0
// example_cpp.cpp - the public headers from C++17: the policy's names and a store in memory.
#include <kvterrace/kvterrace.h>

#include <cstdio>
#include <cstring>
#include <vector>

int main()
{
    kvt_store_options options;
    kvt_store_options_init(&options);
    options.policy = "lru";
    options.tiers[KVT_TIER_DRAM].capacity_bytes = 16u << 20;
    kvt_store *store = nullptr;
    char message[256] = "";
    if (kvt_open(&options, &store, message, sizeof message) != KVT_OK) {
        std::fprintf(stderr, "example_cpp: %s\n", message);
        return 1;
    }
    kvt_entry entry{};
    entry.struct_size = sizeof entry;
    entry.key.bytes[0] = 7;
    entry.layout.dtype = KVT_DTYPE_OPAQUE;
    entry.layout.opaque_bytes = 100000;
    entry.recompute_seconds = 1;
    std::vector<unsigned char> source(100000, 0x5a), target(100000);
    kvt_status status = kvt_put(store, &entry, source.data(), source.size());
    if (status == KVT_OK) {
        status = kvt_get(store, &entry.key, target.data(), target.size(), nullptr);
    }
    kvt_close(store);
    if (status != KVT_OK || source != target) {
        std::fprintf(stderr, "example_cpp: %s\n", kvt_status_text(status));
        return 1;
    }
    std::printf("C++: %zu bytes in and out\n", target.size());
    return 0;
}
