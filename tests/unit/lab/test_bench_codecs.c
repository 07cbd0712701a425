/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_bench_codecs.c - entries through records and back as the bench counts them, dumps into
 * records and out again, refusals of dumps that do not fit, and the whole bench in small.
 */
#include "codecs/kernels/cpu.h"
#include "codecs_support.h"
#include "estimator/model/safetensors.h"
#include "estimator/quality/kv_files.h"
#include "estimator/quality/quality_round_trip.h"
#include "lab/bench/bench.h"
#include "lab/bench/bench_codecs.h"

#include <jansson.h>
#include <stdio.h>
#include <unistd.h>

enum { LAYERS = 2, TOKENS = 96, HEADS = 2, HEAD_DIM = 32, QUERIES = 4, TENSORS_MAX = 3 * LAYERS };

static const kvt_layout small = {.layers = LAYERS,
                                 .kv_heads = HEADS,
                                 .head_dim = HEAD_DIM,
                                 .dtype = KVT_DTYPE_FP16,
                                 .tokens = TOKENS};

static kvt_variant variant_of(const char *name)
{
    kvt_variant variant;
    assert_status(kvt_variant_parse(name, &variant), KVT_OK);
    return variant;
}

/* ---- trips ---- */

TEST(exact_codecs_lose_nothing)
{
    quality_round_trip round_trip;
    assert_status(quality_round_trip_open(&small, &round_trip), KVT_OK);
    codecs_kv_sample_fill(&small, 7, round_trip.source);
    const char *const names[] = {"raw", "lossless"};
    for (size_t i = 0; i < 2; i++) {
        assert_status(quality_round_trip_run(&round_trip, variant_of(names[i]), false), KVT_OK);
        assert_memory_equal(round_trip.source, round_trip.decoded, round_trip.source_bytes);
        assert_true(round_trip.nmse[0] == 0.0 && round_trip.nmse[1] == 0.0);
        assert_false(round_trip.dropped);
        assert_true(round_trip.info.bits_per_element <= 16.0);
    }
    quality_round_trip_close(&round_trip);
}

/* More bits, less error; the error is that of the numbers and of nothing else. */
TEST(error_falls_with_bits)
{
    quality_round_trip round_trip;
    double before[2] = {1.0, 1.0};
    assert_status(quality_round_trip_open(&small, &round_trip), KVT_OK);
    codecs_kv_sample_fill(&small, 7, round_trip.source);
    const char *const names[] = {"kivi:k2v2,g32", "kivi:k4v4,g32", "kivi:k8v8,g32"};
    for (size_t i = 0; i < 3; i++) {
        assert_status(quality_round_trip_run(&round_trip, variant_of(names[i]), false), KVT_OK);
        for (int side = 0; side < 2; side++) {
            assert_true(round_trip.nmse[side] > 0.0 && round_trip.nmse[side] < before[side] / 4);
            before[side] = round_trip.nmse[side];
        }
    }
    /* With one head as wide as the row, groups of V hold two heads and fit them less well. */
    double apart = round_trip.nmse[1], bits = round_trip.info.bits_per_element;
    assert_status(quality_round_trip_run(&round_trip, variant_of("kivi:k8v8,g64"), true), KVT_OK);
    assert_true(round_trip.nmse[1] > apart);
    assert_true(round_trip.info.bits_per_element < bits);
    quality_round_trip_close(&round_trip);
}

/* Zeros have no energy; a value that is no number is no error to be silent about. */
TEST(energy_of_zero)
{
    quality_round_trip round_trip;
    assert_status(quality_round_trip_open(&small, &round_trip), KVT_OK);
    assert_status(quality_round_trip_run(&round_trip, variant_of("raw"), false), KVT_OK);
    assert_true(round_trip.nmse[0] == 0.0 && round_trip.nmse[1] == 0.0);
    quality_round_trip_close(&round_trip);
    kvt_layout opaque = {.dtype = KVT_DTYPE_OPAQUE, .opaque_bytes = 100};
    assert_status(quality_round_trip_open(&opaque, &round_trip), KVT_E_ARGUMENT);
    quality_round_trip_close(&round_trip);
}

TEST(dropped_tokens_are_known)
{
    quality_round_trip round_trip;
    quality_round_trip_kv kv;
    assert_status(quality_round_trip_open(&small, &round_trip), KVT_OK);
    codecs_kv_sample_fill(&small, 7, round_trip.source);
    kvt_variant variant = variant_of("drop:stream,50");
    kvt_status status = quality_round_trip_run(&round_trip, variant, false);
    if (status == KVT_E_UNSUPPORTED) {
        quality_round_trip_close(&round_trip);
        print_message("this build drops no tokens\n");
        skip();
    }
    assert_status(status, KVT_OK);
    assert_true(round_trip.dropped);
    assert_true(round_trip.nmse[0] == 0.0 && round_trip.nmse[1] == 0.0); /* kept tokens are exact */
    const uint64_t row = (uint64_t)HEADS * HEAD_DIM * 2;
    uint32_t kept = 0;
    for (uint32_t token = 0; token < TOKENS; token++) {
        const uint8_t *decoded = round_trip.decoded + token * row;
        kept += round_trip.kept[token];
        if (round_trip.kept[token]) {
            assert_memory_equal(decoded, round_trip.source + token * row, row);
        } else {
            for (uint64_t i = 0; i < row; i++)
                assert_int_equal(decoded[i], 0);
        }
    }
    assert_int_equal(kept, round_trip.info.stored_tokens);
    assert_true(kept < TOKENS && kept > 0);
    assert_status(quality_round_trip_kv_open(&round_trip, &kv), KVT_OK);
    assert_memory_equal(kv.variant.kept[1] + TOKENS, round_trip.kept + TOKENS, TOKENS);
    assert_null(kv.exact.kept);
    quality_round_trip_kv_close(&kv);
    quality_round_trip_close(&round_trip);
}

/* ---- dumps ---- */

typedef struct dump {
    char folder[64], path[96], record[96], back[96];
    char names[TENSORS_MAX][16];
    safetensors_tensor tensors[TENSORS_MAX];
    size_t count;
    uint8_t *kv, *queries;
} dump;

static void dump_add(dump *d, char side, uint32_t layer, uint64_t rows, const void *data)
{
    snprintf(d->names[d->count], sizeof d->names[0], "%c.%u", side, (unsigned)layer);
    d->tensors[d->count] = (safetensors_tensor){.name = d->names[d->count],
                                                .dtype = KVT_DTYPE_FP16,
                                                .rank = 3,
                                                .shape = {rows, HEADS, HEAD_DIM},
                                                .data = data};
    d->count++;
}

static int dump_make(void **state)
{
    dump *d = test_zeros(sizeof *d);
    kvt_layout asked = small;
    uint64_t bytes, query_bytes;
    snprintf(d->folder, sizeof d->folder, "kvterrace-test-XXXXXX");
    assert_non_null(mkdtemp(d->folder));
    snprintf(d->path, sizeof d->path, "%s/dump.safetensors", d->folder);
    snprintf(d->record, sizeof d->record, "%s/dump.kvt", d->folder);
    snprintf(d->back, sizeof d->back, "%s/back.safetensors", d->folder);
    asked.tokens = QUERIES;
    assert_status(kvt_layout_bytes(&small, &bytes), KVT_OK);
    assert_status(kvt_layout_bytes(&asked, &query_bytes), KVT_OK);
    d->kv = malloc(bytes);
    d->queries = test_alloc(query_bytes);
    codecs_kv_sample_fill(&small, 3, d->kv);
    codecs_kv_sample_fill(&asked, 4, d->queries);
    for (uint32_t l = 0; l < LAYERS; l++) {
        dump_add(d, 'k', l, TOKENS, d->kv + kvt_layout_matrix_offset(&small, l, KVT_SIDE_K));
        dump_add(d, 'v', l, TOKENS, d->kv + kvt_layout_matrix_offset(&small, l, KVT_SIDE_V));
        dump_add(d, 'q', l, QUERIES, d->queries + kvt_layout_matrix_offset(&asked, l, KVT_SIDE_K));
    }
    *state = d;
    return 0;
}

static int dump_remove(void **state)
{
    dump *d = *state;
    unlink(d->path);
    unlink(d->record);
    unlink(d->back);
    rmdir(d->folder);
    free(d->kv);
    return 0;
}

static void dump_write(dump *d)
{
    char message[256] = "";
    if (safetensors_write(d->path, d->tensors, d->count, NULL, 0, message, sizeof message) !=
        KVT_OK)
        fail_msg("%s", message);
}

TEST_WITH(dump_make, dump_remove, dumps_come_back)
{
    dump *d = *state;
    char message[256] = "";
    kv_file_result result;
    kvt_record_info info;
    safetensors *file;
    dump_write(d);
    assert_status(kv_file_encode(d->path, variant_of("lossless"), (kvt_record_bases){0}, d->record,
                                 &result, message, sizeof message),
                  KVT_OK);
    assert_true(result.queried);
    assert_int_equal(result.query_rows, QUERIES);
    assert_true(result.attention_error == 0.0 && result.nmse[0] == 0.0 && result.nmse[1] == 0.0);
    assert_status(
        kv_file_decode(d->record, (kvt_record_bases){0}, d->back, &info, message, sizeof message),
        KVT_OK);
    assert_int_equal(info.record_bytes, result.info.record_bytes);
    assert_status(safetensors_open(d->back, &file, message, sizeof message), KVT_OK);
    assert_int_equal(safetensors_count(file), 2 * LAYERS);
    for (size_t i = 0; i < d->count; i++) {
        const safetensors_tensor *tensor = safetensors_find(file, d->tensors[i].name);
        if (d->tensors[i].name[0] == 'q') continue;
        assert_non_null(tensor);
        assert_int_equal(tensor->dtype, KVT_DTYPE_FP16);
        assert_int_equal(tensor->shape[0], TOKENS);
        assert_memory_equal(tensor->data, d->tensors[i].data, tensor->bytes);
    }
    safetensors_close(file);
    assert_status(kv_file_encode(d->path, variant_of("kivi:k4v4,g32"), (kvt_record_bases){0}, NULL,
                                 &result, message, sizeof message),
                  KVT_OK);
    assert_true(result.attention_error > 0.0 && result.attention_error < 0.5);
}

/* Every element type and every codec: what is encoded exactly comes back byte for byte and under
 * its type's name, and what a codec does not take leaves no record. */
TEST_WITH(dump_make, dump_remove, every_type_comes_back)
{
    static const struct {
        const char *name;
        uint8_t dtype;
    } types[] = {{"F16", KVT_DTYPE_FP16},
                 {"BF16", KVT_DTYPE_BF16},
                 {"F32", KVT_DTYPE_FP32},
                 {"F8_E4M3", KVT_DTYPE_FP8},
                 {"F8_E5M2", KVT_DTYPE_FP8}};
    static const char *const variants[] = {
        "raw", "lossless", "kivi:k4v4,g32", "planes:k4v4,g32", "entropy:k0.5v1", "drop:stream,50"};
    dump *d = *state;
    char message[256];
    kv_file_result result;
    kvt_record_info info;
    safetensors *file;
    uint32_t exact = 0;
    uint8_t *wide = test_zeros(TOKENS * HEADS * HEAD_DIM * sizeof(float));
    for (size_t t = 0; t < sizeof types / sizeof types[0]; t++) {
        const bool bytes = types[t].dtype == KVT_DTYPE_FP8;
        for (size_t i = 0; i < (size_t)TOKENS * HEADS * HEAD_DIM * kvt_dtype_bytes(types[t].dtype);
             i++)
            wide[i] = bytes ? (uint8_t)(i * 37) : (uint8_t)(i % 4 == 1 ? 0x3c : i % 0x3c);
        for (size_t i = 0; i < d->count; i++) {
            const bool query = d->tensors[i].name[0] == 'q';
            d->tensors[i].dtype = query ? KVT_DTYPE_FP16 : types[t].dtype;
            d->tensors[i].type = query ? "F16" : types[t].name;
            if (!query) d->tensors[i].data = wide;
        }
        dump_write(d);
        for (size_t v = 0; v < sizeof variants / sizeof variants[0]; v++) {
            message[0] = '\0';
            kvt_status status =
                kv_file_encode(d->path, variant_of(variants[v]), (kvt_record_bases){0}, d->record,
                               &result, message, sizeof message);
            if (v < 2 && status != KVT_OK) fail_msg("%s: %s", variants[v], message);
            if (status != KVT_OK) {
                assert_status(status, KVT_E_UNSUPPORTED);
                assert_int_not_equal(access(d->record, F_OK), 0);
                continue;
            }
            assert_true(v < 2 || strcmp(types[t].name, "F8_E5M2") != 0);
            status = kv_file_decode(d->record, (kvt_record_bases){0}, d->back, &info, message,
                                    sizeof message);
            if (status != KVT_OK) fail_msg("%s of %s: %s", variants[v], types[t].name, message);
            assert_status(safetensors_open(d->back, &file, message, sizeof message), KVT_OK);
            for (size_t i = 0; i < d->count; i++) {
                const safetensors_tensor *tensor = safetensors_find(file, d->tensors[i].name);
                if (d->tensors[i].name[0] == 'q') continue;
                assert_non_null(tensor);
                assert_string_equal(tensor->type, types[t].name);
                if (v < 2) assert_memory_equal(tensor->data, d->tensors[i].data, tensor->bytes);
                exact += v < 2;
            }
            safetensors_close(file);
            unlink(d->record);
            unlink(d->back);
        }
    }
    assert_int_equal(exact, 5 * 2 * 2 * LAYERS);
}

static void refuses(dump *d, const char *part)
{
    char message[256] = "";
    kv_file_result result;
    dump_write(d);
    assert_status(kv_file_encode(d->path, variant_of("raw"), (kvt_record_bases){0}, d->record,
                                 &result, message, sizeof message),
                  KVT_E_PARSE);
    if (strstr(message, part) == NULL) fail_msg("'%s' does not say '%s'", message, part);
    assert_int_not_equal(access(d->record, F_OK), 0);
}

/* A dump with one kind of 8-bit floats in K and the other in V, and queries of either. */
TEST_WITH(dump_make, dump_remove, kinds_of_small_floats_do_not_mix)
{
    dump *d = *state;
    for (size_t i = 0; i < d->count; i++) {
        const char side = d->tensors[i].name[0];
        d->tensors[i].dtype = side == 'q' ? KVT_DTYPE_FP16 : KVT_DTYPE_FP8;
        d->tensors[i].type = side == 'q' ? NULL : side == 'k' ? "F8_E4M3" : "F8_E5M2";
    }
    refuses(d, "v.0 has another element type than k.0");
    for (size_t i = 0; i < d->count; i++) {
        d->tensors[i].dtype = KVT_DTYPE_FP8;
        d->tensors[i].type = "F8_E4M3";
    }
    refuses(d, "q.0: the element type F8_E4M3");
    for (size_t i = 0; i < d->count; i++) {
        d->tensors[i].type = "F8_E5M2";
    }
    char message[256] = "";
    quality_dump opened;
    for (size_t i = 0; i < d->count; i++)
        if (d->tensors[i].name[0] == 'q') d->tensors[i].name = "other";
    d->count = 2;
    dump_write(d);
    assert_status(quality_dump_open(d->path, &opened, message, sizeof message), KVT_E_PARSE);
    assert_non_null(strstr(message, "k.0: the element type F8_E5M2"));
}

TEST_WITH(dump_make, dump_remove, dumps_that_do_not_fit)
{
    dump *d = *state;
    const safetensors_tensor sound = d->tensors[4]; /* v.1 */
    d->tensors[4].name = "w.1";
    refuses(d, "v.1 is missing");
    d->tensors[4] = sound;
    d->tensors[4].shape[1] = 1;
    d->tensors[4].shape[2] = (uint64_t)HEADS * HEAD_DIM;
    refuses(d, "v.1 has another shape than k.0");
    d->tensors[4] = sound;
    d->tensors[4].shape[0] = TOKENS - 1;
    refuses(d, "v.1 has another shape than k.0");
    d->tensors[4] = sound;
    d->tensors[4].dtype = KVT_DTYPE_BF16;
    refuses(d, "v.1 has another element type");
    d->tensors[4] = sound;
    d->tensors[4].name = "v.9";
    refuses(d, "v.1 is missing");
    d->tensors[4] = sound;
    d->tensors[5].name = "r.1";
    refuses(d, "q.1 is missing");
    d->tensors[5].name = "q.1";
    d->tensors[5].shape[0] = QUERIES - 1;
    refuses(d, "q.1 has another shape than q.0");
    d->tensors[0].rank = 2;
    d->tensors[0].shape[0] = TOKENS;
    d->tensors[0].shape[1] = (uint64_t)HEADS * HEAD_DIM;
    refuses(d, "k.0 has 2 axes");
    d->count = 0;
    refuses(d, "there is no k.<layer>");
}

/* A record cut anywhere, or with a byte turned, gives an error and no file. */
TEST_WITH(dump_make, dump_remove, damaged_records)
{
    dump *d = *state;
    char message[256] = "";
    kv_file_result result;
    kvt_record_info info;
    dump_write(d);
    assert_status(kv_file_encode(d->path, variant_of("planes:k4v4,g32"), (kvt_record_bases){0},
                                 d->record, &result, message, sizeof message),
                  KVT_OK);
    const long sizes[] = {(long)result.info.record_bytes - 1, 5000, 100, 0};
    FILE *file = fopen(d->record, "r+b");
    assert_non_null(file);
    assert_int_equal(fseek(file, (long)result.info.head_bytes + 10, SEEK_SET), 0);
    assert_int_not_equal(fputc(0x5a ^ 0xff, file), EOF);
    assert_int_equal(fclose(file), 0);
    assert_status(
        kv_file_decode(d->record, (kvt_record_bases){0}, d->back, &info, message, sizeof message),
        KVT_E_CORRUPT);
    assert_non_null(strstr(message, "dump.kvt"));
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        assert_int_equal(truncate(d->record, sizes[i]), 0);
        assert_status(kv_file_decode(d->record, (kvt_record_bases){0}, d->back, &info, message,
                                     sizeof message),
                      KVT_E_CORRUPT);
    }
    assert_int_equal(unlink(d->record), 0);
    assert_status(
        kv_file_decode(d->record, (kvt_record_bases){0}, d->back, &info, message, sizeof message),
        KVT_E_GONE);
    assert_int_not_equal(access(d->back, F_OK), 0);
}

/* ---- the bench ---- */

TEST(bench_refuses)
{
    char message[256] = "";
    const char *unknown[] = {"raw", "kivi:k5v5"};
    bench_codecs_options own = {.variants = unknown, .variant_count = 2};
    const bench_options options = {.quick = true, .quiet = true, .own = &own};
    assert_status(
        bench_case_run(&bench_codecs_case, &options, stdout, false, message, sizeof message),
        KVT_E_ARGUMENT);
    assert_non_null(strstr(message, "kivi:k5v5"));
    own.variant_count = 1;
    own.isa = "mmx";
    assert_status(
        bench_case_run(&bench_codecs_case, &options, stdout, false, message, sizeof message),
        KVT_E_ARGUMENT);
    assert_non_null(strstr(message, "mmx"));
}

TEST(bench_reports)
{
    char message[256] = "", *text = NULL;
    size_t bytes = 0;
    const char *names[] = {"raw", "kivi:k4v4,g64", "planes:k4v4,g64"};
    const bench_codecs_options own = {.variants = names, .variant_count = 3};
    const bench_options options = {.quick = true, .quiet = true, .own = &own};
    FILE *out = open_memstream(&text, &bytes);
    assert_non_null(out);
    assert_status(bench_case_run(&bench_codecs_case, &options, out, true, message, sizeof message),
                  KVT_OK);
    assert_int_equal(fclose(out), 0);
    json_t *root = json_loadb(text, bytes, 0, NULL);
    assert_non_null(root);
    assert_true(json_number_value(json_object_get(root, "memcpy_bytes_per_s")) > 0);
    const json_t *rows = json_object_get(root, "results"), *row;
    size_t index;
    assert_int_equal(json_array_size(rows), 6); /* both ways of a record each */
    json_array_foreach(rows, index, row)
    {
        assert_true(json_number_value(json_object_get(row, "bytes_per_s")) > 0);
        assert_true(json_number_value(json_object_get(row, "bits_per_element")) > 0);
    }
    const json_t *losses = json_object_get(root, "losses");
    assert_int_equal(json_array_size(losses), 3);
    double raw = json_number_value(json_object_get(json_array_get(losses, 0), "attention_error"));
    double kivi = json_number_value(json_object_get(json_array_get(losses, 1), "attention_error"));
    double planes = json_number_value(json_object_get(json_array_get(losses, 2), "nmse_k"));
    assert_true(raw == 0.0 && kivi > 0.0 && kivi < 0.5);
    /* Four planes are the codes of KIVI-4. */
    assert_true(planes == json_number_value(json_object_get(json_array_get(losses, 1), "nmse_k")));
    json_decref(root);
    free(text);
}
