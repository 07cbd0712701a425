/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_store_forms.c - gets of entries that a store keeps in a lossy form in DRAM, beside the
 * codec's own decoding of records of the same kind. A profile with that form as the only rung, and
 * room for fewer entries than are put, make the store keep it.
 *
 * Thread rule: as bench_store.h.
 */
#include "bench_store.h"

#include "base/clock.h"
#include "codecs/kv_sample.h"
#include "codecs/record.h"
#include "estimator/exchange/exchange.h"

#include <kvterrace/names.h>
#include <stdlib.h>
#include <string.h>

enum { FORMS_PUT = 48, FORMS_RECORDS = 16, FORMS_ROOM_MIB = 80 };

static const kvt_layout forms_layout = {
    .layers = 32, .kv_heads = 8, .head_dim = 128, .dtype = KVT_DTYPE_BF16, .tokens = 32};
#define FORMS_BYTES (UINT64_C(4) << 20)

typedef struct forms_site {
    kvt_store *store;
    kvt_record_spec spec;
    kvt_key kept[FORMS_PUT]; /* entries that lie in the form */
    uint32_t kept_count;
    char *data;    /* one entry, decoded */
    char *targets; /* FORMS_RECORDS of them */
    char *records, *scratch;
    uint64_t room, scratch_bytes;
    uint64_t record_bytes[FORMS_RECORDS];
} forms_site;

/* A profile whose calibration has the form as its only rung. */
static kvt_status forms_profile(const char *folder, const char *variant, char *path, size_t size)
{
    kvt_profile *profile = NULL;
    char message[256] = "";
    (void)snprintf(path, size, "%s/profile.db", folder);
    json_t *tables = json_pack("{s:[{s:s, s:i, s:i, s:i}], s:[{s:s, s:s, s:i, s:s, s:f, s:f}]}",
                               "model", "model", "bench", "layers", 32, "kv_heads", 8, "head_dim",
                               128, "calibration", "model", "bench", "class", "all", "position", 0,
                               "variant", variant, "bits_per_element", 4.5, "loss", 0.001);
    kvt_status status =
        kvt_profile_open(path, KVT_PROFILE_WRITE, &profile, message, sizeof message);
    if (status == KVT_OK)
        status = exchange_import_tables(profile, tables, "bench store", message, sizeof message);
    json_decref(tables);
    kvt_profile_close(profile);
    if (status != KVT_OK) fprintf(stderr, "kvterrace bench store: %s\n", message);
    return status;
}

static kvt_status forms_open(forms_site *site, const char *profile_path)
{
    char message[256] = "";
    kvt_store_options options;
    kvt_store_options_init(&options);
    options.put_staging_bytes = 0;
    options.tick_seconds = 0;
    options.lossless = false;
    options.profile_path = profile_path;
    options.profile_foreign = true;
    options.ladder = true;
    options.ladder_layout = forms_layout;
    options.alpha_seconds = 1;
    options.tiers[KVT_TIER_DRAM].capacity_bytes = (uint64_t)FORMS_ROOM_MIB << 20;
    kvt_status status = kvt_open(&options, &site->store, message, sizeof message);
    if (status != KVT_OK) fprintf(stderr, "kvterrace bench store: %s\n", message);
    return status;
}

/* Puts entries, and notes those that lie in the form. */
static kvt_status forms_fill(forms_site *site)
{
    kvt_key keys[FORMS_PUT] = {{{0}}};
    for (uint32_t i = 0; i < FORMS_PUT; i++) {
        memcpy(keys[i].bytes, &i, sizeof i);
        keys[i].bytes[15] = 1;
        codecs_kv_sample_fill(&forms_layout, i + 1, site->data);
        const kvt_entry entry = {.struct_size = sizeof entry,
                                 .key = keys[i],
                                 .layout = forms_layout,
                                 .recompute_seconds = 1e4};
        kvt_status status = kvt_put(site->store, &entry, site->data, FORMS_BYTES);
        if (status < KVT_OK) return status;
    }
    for (uint32_t i = 0; i < FORMS_PUT; i++) {
        kvt_description found = {.struct_size = sizeof found};
        if (kvt_describe(site->store, &keys[i], &found) == KVT_OK &&
            memcmp(&found.variant, &site->spec.variant, sizeof found.variant) == 0)
            site->kept[site->kept_count++] = keys[i];
    }
    return site->kept_count != 0 ? KVT_OK : KVT_E_STATE;
}

static kvt_status forms_encode(forms_site *site)
{
    kvt_status status = kvt_record_bound(&site->spec, &site->room, &site->scratch_bytes);
    if (status != KVT_OK) return status;
    site->room = (site->room + 4095) / 4096 * 4096;
    site->scratch_bytes = (site->scratch_bytes + 4095) / 4096 * 4096;
    site->records = bench_buffer(FORMS_RECORDS * site->room);
    site->scratch = bench_buffer(site->scratch_bytes);
    if (site->records == NULL || site->scratch == NULL) return KVT_E_MEMORY;
    for (uint32_t i = 0; i < FORMS_RECORDS && status >= KVT_OK; i++) {
        codecs_kv_sample_fill(&forms_layout, i + 1, site->data);
        status = kvt_record_encode(&site->spec, site->data, FORMS_BYTES,
                                   site->records + i * site->room, site->room, site->scratch,
                                   site->scratch_bytes, &site->record_bytes[i]);
    }
    return status > KVT_OK ? KVT_OK : status;
}

/* A get and a decoding in turns. */
static uint32_t forms_time(forms_site *site, uint32_t rounds, uint64_t *get_ns, uint64_t *codec_ns)
{
    uint32_t failed = 0;
    for (uint32_t i = 0; i < rounds; i++) {
        uint32_t slot = i % FORMS_RECORDS;
        char *target = site->targets + slot * FORMS_BYTES;
        /* The codec's target must be as cold as the get's. */
        char *other = site->targets + (slot + FORMS_RECORDS / 2) % FORMS_RECORDS * FORMS_BYTES;
        uint64_t began_ns = base_clock_ns();
        kvt_status got =
            kvt_get(site->store, &site->kept[i % site->kept_count], target, FORMS_BYTES, NULL);
        uint64_t between_ns = base_clock_ns();
        kvt_status decoded =
            kvt_record_decode(site->records + slot * site->room, site->record_bytes[slot], NULL,
                              other, FORMS_BYTES, site->scratch, site->scratch_bytes);
        codec_ns[i] = base_clock_ns() - between_ns;
        get_ns[i] = between_ns - began_ns;
        failed += got != KVT_OK || decoded != KVT_OK;
    }
    return failed;
}

bool store_bench_form(const char *variant, uint32_t rounds, uint64_t *get_ns, uint64_t *codec_ns,
                      uint64_t *entry_bytes, uint32_t *failed)
{
    char folder[128], path[160];
    forms_site site = {.spec = {.generation = 1, .layout = forms_layout}};
    *entry_bytes = FORMS_BYTES;
    kvt_status status = kvt_variant_parse(variant, &site.spec.variant);
    if (status != KVT_OK || bench_scratch_make(NULL, "store", folder, sizeof folder) != 0)
        return false;
    site.data = bench_buffer(FORMS_BYTES);
    site.targets = bench_buffer(FORMS_RECORDS * FORMS_BYTES);
    status = site.data != NULL && site.targets != NULL ? KVT_OK : KVT_E_MEMORY;
    if (status == KVT_OK) status = forms_profile(folder, variant, path, sizeof path);
    if (status == KVT_OK) status = forms_open(&site, path);
    if (status == KVT_OK) status = forms_fill(&site);
    if (status == KVT_OK) status = forms_encode(&site);
    if (status == KVT_OK) *failed += forms_time(&site, rounds, get_ns, codec_ns);
    if (status != KVT_OK)
        fprintf(stderr, "kvterrace bench store: %s: %s\n", variant, kvt_status_text(status));
    kvt_close(site.store);
    bench_scratch_remove();
    free(site.data);
    free(site.targets);
    free(site.records);
    free(site.scratch);
    return status == KVT_OK;
}
