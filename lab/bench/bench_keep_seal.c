/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_keep_seal.c - encrypted devices beside plain ones: bytes a second of a core, and objects
 * through a pool on one drive and striped over all of them.
 *
 * A drive is wiped between the two, as neither takes the other's.
 *
 * Thread rule: one case at a time.
 */
#include "bench_keep.h"
#include "bench_parts.h"

#include "lab/private.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MIB ((uint64_t)1 << 20)

enum { ITERATIONS_DEFAULT = 9, CORE_UNITS = 3 };

/* ---- a core ---- */

typedef struct core_rates {
    bench_rate encrypt, decrypt, copy;
} core_rates;

/* Encrypts and decrypts a buffer by units. KVT_E_CORRUPT: other bytes came back. */
static kvt_status core_measure(seal_cipher *cipher, uint32_t unit, unsigned char *source,
                               unsigned char *target, uint64_t bytes, uint32_t iterations,
                               core_rates *out)
{
    static double rates[3][BENCH_ITERATIONS_MAX];
    uint8_t nonce[SEAL_NONCE_BYTES] = {0};
    const uint64_t units = bytes / unit;
    kvt_status status = KVT_OK;
    uint8_t(*tags)[SEAL_TAG_BYTES] = calloc(units, sizeof *tags);
    if (tags == NULL) return KVT_E_MEMORY;
    for (uint32_t i = 0; i < iterations && status == KVT_OK; i++) {
        double at[4];
        at[0] = base_cpu_seconds();
        for (uint64_t k = 0; k < units && status == KVT_OK; k++) {
            memcpy(nonce, &(uint64_t){i * units + k}, sizeof(uint64_t));
            status =
                seal_encrypt(cipher, nonce, source + k * unit, target + k * unit, unit, tags[k]);
        }
        at[1] = base_cpu_seconds();
        for (uint64_t k = 0; k < units && status == KVT_OK; k++) {
            memcpy(nonce, &(uint64_t){i * units + k}, sizeof(uint64_t));
            status = seal_decrypt(cipher, nonce, target + k * unit, unit, tags[k]);
        }
        at[2] = base_cpu_seconds();
        if (status == KVT_OK && memcmp(source, target, bytes) != 0) status = KVT_E_CORRUPT;
        at[3] = base_cpu_seconds();
        memcpy(target, source, bytes);
        rates[2][i] = (double)bytes / (base_cpu_seconds() - at[3]);
        rates[0][i] = (double)bytes / (at[1] - at[0]);
        rates[1][i] = (double)bytes / (at[2] - at[1]);
    }
    free(tags);
    out->encrypt = bench_rate_of(rates[0], iterations);
    out->decrypt = bench_rate_of(rates[1], iterations);
    out->copy = bench_rate_of(rates[2], iterations);
    return status;
}

static kvt_status core_rows(unsigned char *source, unsigned char *target, uint64_t bytes,
                            uint32_t iterations, bench_report *report)
{
    static const uint32_t units[CORE_UNITS] = {4096, 16384, 65536};
    const uint8_t key[SEAL_KEY_BYTES] = {7};
    seal_cipher *cipher = NULL;
    kvt_status status = seal_available() ? seal_cipher_new(key, &cipher) : KVT_E_UNSUPPORTED;
    for (int i = 0; i < CORE_UNITS && status == KVT_OK; i++) {
        core_rates rates;
        status = core_measure(cipher, units[i], source, target, bytes, iterations, &rates);
        if (status != KVT_OK) break;
        json_t *row = json_pack("{s:I, s:b}", "unit_bytes", (json_int_t)units[i], "used",
                                units[i] == TIERS_SEAL_UNIT_BYTES);
        row = bench_with_rate(row, "encrypt_bytes_per_s", &rates.encrypt);
        row = bench_with_rate(row, "decrypt_bytes_per_s", &rates.decrypt);
        bench_report_row(report, "seal_cores",
                         bench_with_rate(row, "memcpy_bytes_per_s", &rates.copy));
    }
    if (cipher != NULL) seal_cipher_free(cipher);
    return bench_blame(report, status, "cores", "");
}

/* ---- drives ---- */

typedef struct drive_figures {
    bench_rate read, write;
    double cpu_s_per_gb; /* of the process, reads and writes */
} drive_figures;

/* Takes the header or label of a drive away: what it holds may be lost. */
static void drive_wipe(const kvt_device_config *config)
{
    static const char zeros[2 * 4096];
    if (config->path == NULL) return;
    const int file = open(config->path, O_WRONLY | O_CLOEXEC);
    if (file < 0) return;
    (void)!pwrite(file, zeros, sizeof zeros, 0);
    (void)fsync(file);
    close(file);
}

/* Writes an object and reads it, `iterations` times each behind one that does not count. */
static kvt_status drive_measure_pool(tiers_pool *pool, void *source, void *target, uint64_t bytes,
                                     uint32_t iterations, drive_figures *out)
{
    static double rates[2][BENCH_ITERATIONS_MAX];
    tiers_location *location = NULL;
    double before = 0;
    kvt_status status = tiers_pool_reserve(pool, bytes, &location);
    for (int way = KVT_IO_WRITE; way >= KVT_IO_READ && status == KVT_OK; way--) {
        void *buffer = way == KVT_IO_WRITE ? source : target;
        double first;
        status = bench_move(pool, (kvt_io_kind)way, location, buffer, &first, NULL);
        if (way == KVT_IO_WRITE) before = bench_process_seconds();
        for (uint32_t i = 0; i < iterations && status == KVT_OK; i++)
            status = bench_move(pool, (kvt_io_kind)way, location, buffer, &rates[way][i], NULL);
    }
    out->cpu_s_per_gb =
        (bench_process_seconds() - before) / ((double)bytes * (2.0 * iterations + 1) / 1e9);
    if (status == KVT_OK && memcmp(source, target, bytes) != 0) status = KVT_E_CORRUPT;
    out->read = bench_rate_of(rates[KVT_IO_READ], iterations);
    out->write = bench_rate_of(rates[KVT_IO_WRITE], iterations);
    if (location != NULL) tiers_pool_release(pool, location);
    return status;
}

/* Opens the first `count` drives as a pool, by their caps or alike, and measures it. */
static kvt_status drive_measure(const bench_options *options, uint32_t count, bool encrypted,
                                void *source, void *target, uint64_t bytes, uint32_t iterations,
                                bench_report *report, drive_figures *out)
{
    static const char key[] = "printf '%064d' 7";
    tiers_member_options members[TIERS_MEMBERS_MAX] = {{0}};
    const tiers_pool_options pool_options = {.striping = TIERS_STRIPE_PROPORTIONAL};
    tiers_pool *pool = NULL;
    char message[256] = "";
    kvt_status status = KVT_OK;
    for (uint32_t i = 0; i < count && status == KVT_OK; i++) {
        kvt_device_config config = options->devices[i];
        kvt_device *device = NULL;
        const double speed = config.read_bytes_per_s > 0 ? (double)config.read_bytes_per_s : 1e9;
        if (encrypted) config.key_command = key;
        drive_wipe(&config);
        status = kvt_device_open(&config, &device, message, sizeof message);
        members[i] = tiers_member_options_of(&config, device, speed, speed, NULL);
    }
    if (status == KVT_OK)
        status = tiers_pool_open(members, count, &pool_options, &pool, message, sizeof message);
    for (uint32_t i = 0; i < count && status != KVT_OK; i++)
        kvt_device_close(members[i].device);
    if (status == KVT_OK) {
        status = drive_measure_pool(pool, source, target, bytes, iterations, out);
        (void)tiers_pool_close(pool);
    }
    for (uint32_t i = 0; i < count; i++)
        drive_wipe(&options->devices[i]);
    return bench_blame(report, status, encrypted ? "encrypted drives" : "plain drives", message);
}

static kvt_status drive_rows(const bench_options *options, void *source, void *target,
                             uint64_t bytes, uint32_t iterations, bench_report *report)
{
    kvt_status status = KVT_OK;
    for (int all = 0; all < 2 && status == KVT_OK; all++) {
        const uint32_t count = all == 1 ? options->device_count : 1;
        drive_figures figures[2];
        for (int encrypted = 0; encrypted < 2 && status == KVT_OK; encrypted++) {
            drive_figures *own = &figures[encrypted];
            (void)bench_tell(options, 1 + 2 * all + encrypted, 5, "drives");
            status = drive_measure(options, count, encrypted == 1, source, target, bytes,
                                   iterations, report, own);
            if (status != KVT_OK) break;
            json_t *row = json_pack("{s:i, s:b, s:I, s:f, s:f, s:f}", "drives", (int)count,
                                    "encrypted", encrypted, "object_bytes", (json_int_t)bytes,
                                    "read_ratio", own->read.median / figures[0].read.median,
                                    "write_ratio", own->write.median / figures[0].write.median,
                                    "cpu_s_per_gb", own->cpu_s_per_gb);
            row = bench_with_rate(row, "read_bytes_per_s", &own->read);
            bench_report_row(report, "seal_drives",
                             bench_with_rate(row, "write_bytes_per_s", &own->write));
        }
    }
    return status;
}

kvt_status bench_keep_seal(const bench_options *options, bench_report *report)
{
    kvt_device_config own[BENCH_OWN_DRIVES];
    bench_options given = *options;
    kvt_status status = bench_take_drives(&given, 64 * MIB, 0, own, report);
    if (status != KVT_OK) return status;
    if (given.device_count == 0 || given.device_count > TIERS_MEMBERS_MAX)
        return bench_blame(report, KVT_E_ARGUMENT, "devices", "1 to 64 drives are compared");
    const uint64_t bytes = given.quick ? 4 * MIB : 32 * MIB;
    const uint32_t iterations =
        bench_repetitions(given.iterations, ITERATIONS_DEFAULT, given.quick);
    unsigned char *source = bench_buffer(bytes), *target = bench_buffer(bytes);
    status = source == NULL || target == NULL ? KVT_E_MEMORY : KVT_OK;
    (void)bench_tell(options, 0, 5, "a core");
    if (status == KVT_OK) status = core_rows(source, target, bytes, iterations, report);
    if (status == KVT_OK) status = drive_rows(&given, source, target, bytes, iterations, report);
    free(source);
    free(target);
    return status;
}
