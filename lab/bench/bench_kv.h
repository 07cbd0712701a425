/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_kv.h - KV dumps as memory, for what measures on KV of one's own. One thread.
 */
#ifndef BENCH_BENCH_KV_H
#define BENCH_BENCH_KV_H

#include "estimator/measure/measure.h"
#include "estimator/profile/profile.h"

/*
 * Reads the K and V of a dump (estimator/quality/quality_dump.h says what it holds), of its first
 * tokens when it is larger than `most_bytes`. out->name is `path` itself, which the caller keeps.
 * Release with bench_kv_free. Statuses of quality_dump_open.
 */
KVT_NODISCARD kvt_status bench_kv_read(const char *path, uint64_t most_bytes, kvt_profile_kv *out,
                                       char *message, size_t message_size);
void bench_kv_free(kvt_profile_kv *kv);

#endif
