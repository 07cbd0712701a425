/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_estimator_csv.c - prefill times from CSV: the arithmetic on a small hand-made model, the
 * worked table of measured GPUs, and hostile files.
 */
#include "estimator/profile/profile.h"

#include <fcntl.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>
#include <zstd.h>

static char folder[64];

static const char attention_text[] = "prefill_chunk,kv_prefill,n_decode,kv_decode,time_us\n"
                                     "0,0,1,16,9\n"
                                     "1000,0,0,0,100\n"
                                     "1000,2000,0,0,300\n"
                                     "500,0,0,0,1\n"
                                     "500,1000,0,0,2\n"
                                     "4000,0,0,0,1\n"
                                     "4000,1000,0,0,2\n";
static const char dense_text[] = "layer,tokens,time_us\n"
                                 "qkv_proj,1,0\nqkv_proj,2000,20\n"
                                 "rotary_emb,1000,1\nrotary_emb,2000,1\n"
                                 "o_proj,1000,2\no_proj,2000,9\n"
                                 "layernorm,1000,4\nlayernorm,2000,9\n"
                                 "act_fn,1000,8\nact_fn,2000,9\n"
                                 "gate_up_proj,1000,16\ngate_up_proj,2000,99\n"
                                 "down_proj,1000,32\ndown_proj,2000,99\n"
                                 "embedding,1000,1000\nembedding,2000,2000\n"
                                 "final_layernorm,1000,0.5e3\r\nfinal_layernorm,2000,5.0E+2\n";
static const char sequence_text[] = "layer,sequences,time_us\nlm_head,1,2000\nsampler,1,7\n";

static void write_bytes(const char *suffix, const void *bytes, size_t count)
{
    char path[256];
    snprintf(path, sizeof path, "%s/m_%s", folder, suffix);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, count, file), count);
    assert_int_equal(fclose(file), 0);
}

static void write_text(const char *suffix, const char *text)
{
    write_bytes(suffix, text, strlen(text));
}

static void remove_file(const char *suffix)
{
    char path[256];
    snprintf(path, sizeof path, "%s/m_%s", folder, suffix);
    (void)unlink(path);
}

static void write_model(void)
{
    write_text("attention.csv", attention_text);
    write_text("dense.csv", dense_text);
    write_text("per_sequence.csv", sequence_text);
}

static int make_folder(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "estimator-csv-XXXXXX");
    return mkdtemp(folder) == NULL ? -1 : 0;
}

static int remove_folder(void **state)
{
    (void)state;
    const char *suffixes[] = {"attention.csv", "dense.csv", "per_sequence.csv",
                              "attention.csv.zst"};
    for (size_t i = 0; i < 4; i++)
        remove_file(suffixes[i]);
    return rmdir(folder);
}

static kvt_status read_model(kvt_prefill *prefill, char *message, size_t size)
{
    char prefix[128];
    snprintf(prefix, sizeof prefix, "%s/m", folder);
    return kvt_prefill_read_csv(prefix, 2, prefill, message, size);
}

static void assert_near(double value, double expected, double relative)
{
    if (fabs(value - expected) <= relative * fabs(expected)) return;
    fail_msg("%.9g is not within %g of %.9g", value, relative, expected);
}

/* By hand, for a chunk of 1000 and two layers: dense 9.995.. + 1 + 2 + 2 * 4 + 8 + 16 + 32, once
 * 1000 + 500 + 2000 per pass, attention 100 + 0.1 per cached token. */
static void small_model_adds_up(void **state)
{
    (void)state;
    kvt_prefill prefill;
    char message[256];
    write_model();
    assert_int_equal(read_model(&prefill, message, sizeof message), KVT_OK);
    assert_int_equal(prefill.table_step, 1000);
    double qkv = 20.0 * 999.0 / 1999.0;
    double pass = 3500e-6, dense = (qkv + 67.0) * 1e-6;
    double first = 2.0 * (dense + 100e-6) + pass;
    double second = 2.0 * (dense + 200e-6) + pass;
    double tenth = 2.0 * (dense + 1000e-6) + pass;
    assert_near(kvt_prefill_seconds(&prefill, 0, 1000), first, 1e-9);
    assert_near(kvt_prefill_seconds(&prefill, 1000, 2000), second, 1e-9);
    assert_near(kvt_prefill_seconds(&prefill, 9000, 10000), tenth, 1e-9);
    assert_near(kvt_prefill_seconds(&prefill, 0, 500), first / 2.0, 1e-9);
    kvt_prefill_free(&prefill);
    assert_null(prefill.table_seconds);
    kvt_prefill_free(&prefill);
    assert_int_equal(kvt_prefill_read_csv("nowhere/at/all", 2, &prefill, message, sizeof message),
                     KVT_E_GONE);
    assert_non_null(strstr(message, "nowhere/at/all_attention.csv"));
    assert_int_equal(kvt_prefill_read_csv("x", 0, &prefill, NULL, 0), KVT_E_ARGUMENT);
}

static void compressed_file_is_read(void **state)
{
    (void)state;
    char packed[4096], message[256];
    kvt_prefill prefill;
    write_model();
    remove_file("attention.csv");
    size_t bytes = ZSTD_compress(packed, sizeof packed, attention_text, strlen(attention_text), 3);
    assert_false(ZSTD_isError(bytes));
    write_bytes("attention.csv.zst", packed, bytes);
    assert_int_equal(read_model(&prefill, message, sizeof message), KVT_OK);
    assert_int_equal(prefill.table_step, 1000);
    kvt_prefill_free(&prefill);
    for (size_t cut = 0; cut < bytes; cut++) {
        write_bytes("attention.csv.zst", packed, cut);
        assert_int_equal(read_model(&prefill, message, sizeof message), KVT_E_PARSE);
        assert_non_null(strstr(message, "attention.csv.zst"));
        assert_null(prefill.table_seconds);
    }
    remove_file("attention.csv.zst");
}

/* A few kilobytes that unpack to more than anyone measures are refused, not swallowed. */
static void compressed_bomb_is_refused(void **state)
{
    (void)state;
    size_t bytes = (size_t)80 << 20, bound = ZSTD_compressBound(bytes);
    char *zeros = calloc(1, bytes), *packed = malloc(bound), message[256];
    kvt_prefill prefill;
    assert_non_null(zeros);
    assert_non_null(packed);
    write_model();
    remove_file("attention.csv");
    size_t packed_bytes = ZSTD_compress(packed, bound, zeros, bytes, 1);
    write_bytes("attention.csv.zst", packed, packed_bytes);
    assert_int_equal(read_model(&prefill, message, sizeof message), KVT_E_PARSE);
    assert_non_null(strstr(message, "64 MiB"));
    remove_file("attention.csv.zst");
    free(zeros);
    free(packed);
}

static void bad_rows_name_their_line(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        const char *expected; /* in the message */
    } rows[] = {
        {"", "m_dense.csv:1:"},
        {"layer,tokens\n", "m_dense.csv:1:"},
        {"layer,tokens,us\n", "m_dense.csv:1:"},
        {"layer,tokens,time_us\n", "m_dense.csv:1: ends"},
        {"layer,tokens,time_us\nqkv_proj,1\n", "m_dense.csv:2:"},
        {"layer,tokens,time_us\nqkv_proj,1,2,3\n", "m_dense.csv:2:"},
        {"layer,tokens,time_us\nqkv_proj,1,2\n\n", "m_dense.csv:3:"},
        {"layer,tokens,time_us\nqkv_proj,-1,2\n", "m_dense.csv:2:"},
        {"layer,tokens,time_us\nqkv_proj,99999999999,2\n", "m_dense.csv:2:"},
        {"layer,tokens,time_us\nqkv_proj,4294967296,2\n", "m_dense.csv:2:"},
        {"layer,tokens,time_us\nqkv_proj,1,-2\n", "m_dense.csv:2:"},
        {"layer,tokens,time_us\nqkv_proj,1,nan\n", "m_dense.csv:2:"},
        {"layer,tokens,time_us\nqkv_proj,1,1e999\n", "m_dense.csv:2:"},
        {"layer,tokens,time_us\nqkv_proj,1,1e\n", "m_dense.csv:2:"},
        {"layer,tokens,time_us\nqkv_proj,1,1e+\n", "m_dense.csv:2:"},
        {"layer,tokens,time_us\nqkv_proj,1,.\n", "m_dense.csv:2:"},
        {"layer,tokens,time_us\nqkv_proj,1,1 \n", "m_dense.csv:2:"},
        {"layer,tokens,time_us\nqkv_proj,,1\n", "m_dense.csv:2:"},
        {"layer,tokens,time_us\nother,1,1\n", "m_dense.csv:2: an unknown layer"},
        {"layer,tokens,time_us\nqkv_proj,1,1\nqkv_proj,2,2\nqkv_proj,1,1\n", "m_dense.csv:4:"},
        {",,,,,,,,,,,,,,,\n", "m_dense.csv:1:"},
    };
    write_model();
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        kvt_prefill prefill;
        char message[256];
        write_text("dense.csv", rows[i].text);
        assert_int_equal(read_model(&prefill, message, sizeof message), KVT_E_PARSE);
        if (strstr(message, rows[i].expected) == NULL) fail_msg("row %zu: %s", i, message);
    }
}

/* Every byte of a sound file replaced in turn: a value or a parse error, never anything else, and
 * whatever table comes out never falls. */
static void changed_bytes_never_break_it(void **state)
{
    (void)state;
    static const char replacements[] = {'\0', '\n', ',', '9', '-', 'e', '.', (char)0xff};
    char text[sizeof attention_text];
    unsigned sound = 0, refused = 0;
    write_model();
    for (size_t i = 0; i + 1 < sizeof attention_text; i++) {
        for (size_t r = 0; r < sizeof replacements; r++) {
            kvt_prefill prefill;
            memcpy(text, attention_text, sizeof text);
            text[i] = replacements[r];
            write_bytes("attention.csv", text, sizeof text - 1);
            kvt_status status = read_model(&prefill, NULL, 0);
            assert_true(status == KVT_OK || status == KVT_E_PARSE);
            if (status == KVT_OK) sound++;
            if (status != KVT_OK) refused++;
            for (uint32_t row = 1; row < prefill.table_count; row++) {
                assert_true(prefill.table_seconds[row] >= prefill.table_seconds[row - 1]);
            }
            kvt_prefill_free(&prefill);
        }
    }
    assert_true(sound > 0 && refused > sound);
}

/* The worked table of the data set's own description, within 1 %. */
static void measured_gpus_match_their_table(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        double seconds[4];
    } gpus[] = {{"rtx4090", {0.193, 0.400, 0.863, 1.983}},
                {"rtxpro6000", {0.083, 0.173, 0.377, 0.879}}};
    const char *data = getenv("KVT_DATA_DIR");
    if (data == NULL || data[0] == '\0') {
        print_message("KVT_DATA_DIR is not set: no measured tables to compare with\n");
        skip();
    }
    for (size_t g = 0; g < 2; g++) {
        char prefix[512], message[256];
        kvt_prefill prefill;
        snprintf(prefix, sizeof prefix, "%s/costs/llama31_8b_%s", data, gpus[g].name);
        kvt_status status = kvt_prefill_read_csv(prefix, 32, &prefill, message, sizeof message);
        if (status != KVT_OK) fail_msg("%s: %s", kvt_status_name(status), message);
        assert_int_equal(prefill.table_step, 2048);
        for (uint32_t i = 0; i < 4; i++) {
            assert_near(kvt_prefill_seconds(&prefill, 0, 2048u << i), gpus[g].seconds[i], 0.01);
        }
        kvt_prefill_free(&prefill);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(small_model_adds_up),
        cmocka_unit_test(compressed_file_is_read),
        cmocka_unit_test(compressed_bomb_is_refused),
        cmocka_unit_test(bad_rows_name_their_line),
        cmocka_unit_test(changed_bytes_never_break_it),
        cmocka_unit_test(measured_gpus_match_their_table),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
