/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_estimator_safetensors.c - tensors written and read back, files of other writers, and headers
 * that lie about lengths, offsets, shapes and types.
 */
#include "cases.h"

#include "estimator/model/safetensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char path[64];

static int make_path(void **state)
{
    (void)state;
    snprintf(path, sizeof path, "safetensors-test-XXXXXX");
    int file = mkstemp(path);
    return file < 0 || close(file) != 0;
}

static int remove_path(void **state)
{
    (void)state;
    return unlink(path);
}

TEST_ALL(make_path, remove_path);

TEST(a_dump_comes_back)
{
    static const uint16_t keys[2][3][4] = {{{0x3c00, 0xc000}, {1}}, {{0x7bff}}};
    static const uint16_t values[2][3][4] = {{{0x3f80, 0xc000}}};
    static const float queries[1][6][4] = {{{1.5f, -2.25f}}};
    static const char name[] = "odd \"name\" \\ \xc3\xa9";
    const safetensors_tensor written[] = {
        {.name = "v.0", .dtype = KVT_DTYPE_BF16, .rank = 3, .shape = {2, 3, 4}, .data = values},
        {.name = "k.0", .dtype = KVT_DTYPE_FP16, .rank = 3, .shape = {2, 3, 4}, .data = keys},
        {.name = "q.0", .dtype = KVT_DTYPE_FP32, .rank = 3, .shape = {1, 6, 4}, .data = queries},
        {.name = "empty", .dtype = KVT_DTYPE_FP32, .rank = 2, .shape = {0, 4}},
        {.name = name, .dtype = KVT_DTYPE_FP32, .rank = 0, .data = queries},
    };
    safetensors *file;
    char message[256] = "";
    float row[4];
    assert_ok(safetensors_write(path, written, 5, NULL, 0, message, sizeof message));
    assert_ok(safetensors_open(path, &file, message, sizeof message));
    assert_int_equal(safetensors_count(file), 5);
    for (size_t i = 0; i < 5; i++) {
        const safetensors_tensor *tensor = safetensors_find(file, written[i].name);
        assert_non_null(tensor);
        assert_int_equal(tensor->dtype, written[i].dtype);
        assert_int_equal(tensor->rank, written[i].rank);
        for (size_t d = 0; d < tensor->rank; d++)
            assert_int_equal(tensor->shape[d], written[i].shape[d]);
        if (tensor->bytes > 0) assert_memory_equal(tensor->data, written[i].data, tensor->bytes);
    }
    assert_int_equal(safetensors_find(file, "empty")->bytes, 0);
    assert_int_equal(safetensors_find(file, name)->elements, 1);
    assert_null(safetensors_find(file, "k.1"));
    assert_null(safetensors_at(file, 5));
    assert_string_equal(safetensors_at(file, 1)->name, "k.0"); /* after "empty" */
    assert_int_equal((uintptr_t)safetensors_find(file, "v.0")->data % 64, 0);
    safetensors_read_fp32(safetensors_find(file, "k.0"), 0, 2, row);
    assert_true(row[0] == 1.0f && row[1] == -2.0f);
    safetensors_read_fp32(safetensors_find(file, "v.0"), 0, 2, row);
    assert_true(row[0] == 1.0f && row[1] == -2.0f);
    safetensors_read_fp32(safetensors_find(file, "q.0"), 1, 1, row);
    assert_true(row[0] == -2.25f);
    safetensors_close(file);
}

TEST(writer_refuses_what_it_cannot_write)
{
    static const float data[4] = {0};
    const safetensors_tensor wrong[][2] = {
        {{.name = "", .dtype = KVT_DTYPE_FP32, .data = data}},
        {{.name = "__metadata__", .dtype = KVT_DTYPE_FP32, .data = data}},
        {{.name = "a", .dtype = KVT_DTYPE_FP8, .data = data}},
        {{.name = "a", .dtype = KVT_DTYPE_FP32, .rank = 9, .data = data}},
        {{.name = "\xff", .dtype = KVT_DTYPE_FP32, .data = data}},
        {{.name = "a", .dtype = KVT_DTYPE_FP32, .rank = 2, .shape = {UINT64_MAX, 2}}},
        {{.name = "a", .dtype = KVT_DTYPE_FP32, .data = data},
         {.name = "a", .dtype = KVT_DTYPE_FP32, .data = data}},
    };
    char message[256];
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        size_t count = wrong[i][1].name != NULL ? 2 : 1;
        assert_int_equal(safetensors_write(path, wrong[i], count, NULL, 0, message, sizeof message),
                         KVT_E_ARGUMENT);
        assert_non_null(strstr(message, "cannot be written"));
    }
    assert_int_equal(
        safetensors_write("no-such-folder/x", wrong[0], 0, NULL, 0, message, sizeof message),
        KVT_E_IO);
}

/* Opens a header with `data_bytes` bytes of data behind it, from memory of exactly that size. */
static kvt_status open_header(const char *header, size_t data_bytes, char *message, size_t size)
{
    size_t length = strlen(header), total = 8 + length + data_bytes;
    uint8_t *bytes = test_zeros(total);
    safetensors *file = NULL;
    for (int i = 0; i < 8; i++)
        bytes[i] = (uint8_t)((uint64_t)length >> 8 * i);
    memcpy(bytes + 8, header, length);
    kvt_status status = safetensors_open_bytes("memory", bytes, total, &file, message, size);
    assert_true((status == KVT_OK) == (file != NULL));
    safetensors_close(file);
    return status;
}

#define TENSOR(name, type, shape, offsets)                                                         \
    "\"" name "\": {\"dtype\": \"" type "\", \"shape\": " shape ", \"data_offsets\": " offsets "}"
#define HEADER(tensor) "{" tensor "}"
#define GOOD           TENSOR("a", "F32", "[2]", "[0, 8]")

TEST(other_writers_are_read)
{
    static const struct {
        const char *header;
        size_t data_bytes;
    } good[] = {
        {"{}", 0},
        {HEADER(GOOD), 8},
        {HEADER(GOOD) "    \n", 8},
        {HEADER("\"__metadata__\": {\"format\": \"pt\"}, " GOOD), 8},
        {HEADER(TENSOR("b", "I64", "[1]", "[8, 16]") ", " GOOD), 16},
        {HEADER(TENSOR("b", "F8_E4M3", "[3, 1]", "[8, 11]") ", " GOOD), 11},
        {HEADER(TENSOR("e", "BF16", "[0, 7]", "[8, 8]") ", " GOOD), 8},
        {HEADER(TENSOR("e", "BF16", "[0, 9223372036854775807]", "[0, 0]") ", " GOOD), 8},
        {HEADER(TENSOR("s", "BOOL", "[]", "[0, 1]")), 1},
    };
    char message[256] = "";
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        kvt_status status = open_header(good[i].header, good[i].data_bytes, message, 256);
        if (status != KVT_OK) fail_msg("%s: %s", good[i].header, message);
    }
}

TEST(lying_headers_are_refused)
{
    static const struct {
        const char *header;
        size_t data_bytes;
        kvt_status status;
        const char *words;
    } bad[] = {
        {"", 8, KVT_E_PARSE, "header"},
        {"[]", 0, KVT_E_PARSE, "no object"},
        {"{\"a\": 1}", 0, KVT_E_PARSE, "no object"},
        {HEADER(GOOD) "x", 8, KVT_E_PARSE, "header"},
        {HEADER(GOOD ", " GOOD), 8, KVT_E_PARSE, "duplicate"},
        {HEADER("\"__metadata__\": {\"n\": 1}, " GOOD), 8, KVT_E_PARSE, "strings"},
        {HEADER("\"__metadata__\": 1, " GOOD), 8, KVT_E_PARSE, "no object"},
        {HEADER(GOOD), 7, KVT_E_CORRUPT, "outside"},
        {HEADER(GOOD), 9, KVT_E_CORRUPT, "after the last"},
        {"{}", 1, KVT_E_CORRUPT, "after the last"},
        {HEADER(TENSOR("a", "F32", "[2]", "[8, 0]")), 8, KVT_E_CORRUPT, "outside"},
        {HEADER(TENSOR("a", "F32", "[2]", "[-8, 0]")), 8, KVT_E_PARSE, "data_offsets"},
        {HEADER(TENSOR("a", "F32", "[2]", "[0, 8.0]")), 8, KVT_E_PARSE, "data_offsets"},
        {HEADER(TENSOR("a", "F32", "[2]", "[0]")), 8, KVT_E_PARSE, "data_offsets"},
        {HEADER(TENSOR("a", "F32", "[2]", "[0, 8, 8]")), 8, KVT_E_PARSE, "data_offsets"},
        {HEADER(TENSOR("a", "F32", "[-2]", "[0, 8]")), 8, KVT_E_PARSE, "dimension"},
        {HEADER(TENSOR("a", "F32", "[2.0]", "[0, 8]")), 8, KVT_E_PARSE, "dimension"},
        {HEADER(TENSOR("a", "F32", "2", "[0, 8]")), 8, KVT_E_PARSE, "no shape"},
        {HEADER(TENSOR("a", "F32", "[3]", "[0, 8]")), 8, KVT_E_CORRUPT, "differ"},
        {HEADER(TENSOR("a", "F31", "[2]", "[0, 8]")), 8, KVT_E_CORRUPT, "unknown dtype"},
        {HEADER("\"a\": {\"shape\": [2], \"data_offsets\": [0, 8]}"), 8, KVT_E_PARSE, "no dtype"},
        {HEADER("\"a\": {\"dtype\": \"F32\", \"shape\": [2], \"data_offsets\": [0, 8], "
                "\"scale\": 2}"),
         8, KVT_E_PARSE, "more than dtype"},
        {HEADER("\"a\": {\"dtype\": 4, \"shape\": [2], \"data_offsets\": [0, 8]}"), 8, KVT_E_PARSE,
         "no dtype"},
        {HEADER(TENSOR("a", "F32", "[1,1,1,1,1,1,1,1,2]", "[0, 8]")), 8, KVT_E_CORRUPT,
         "more than"},
        {HEADER(TENSOR("a", "F32", "[4611686018427387904, 4]", "[0, 0]")), 0, KVT_E_CORRUPT,
         "overflows"},
        {HEADER(TENSOR("a", "F32", "[4611686018427387904]", "[0, 0]")), 0, KVT_E_CORRUPT, "differ"},
        {HEADER(TENSOR("a", "F32", "[99999999999999999999]", "[0, 8]")), 8, KVT_E_PARSE, "header"},
        {HEADER(GOOD ", " TENSOR("b", "F32", "[2]", "[4, 12]")), 12, KVT_E_CORRUPT, "overlaps"},
        {HEADER(GOOD ", " TENSOR("b", "F32", "[2]", "[0, 8]")), 8, KVT_E_CORRUPT, "overlaps"},
        {HEADER(GOOD ", " TENSOR("b", "F32", "[2]", "[12, 20]")), 20, KVT_E_CORRUPT, "gap"},
        {HEADER(TENSOR("a\\u0000b", "F32", "[2]", "[0, 8]")), 8, KVT_E_PARSE, "header"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        char message[256] = "";
        kvt_status status = open_header(bad[i].header, bad[i].data_bytes, message, sizeof message);
        if (status != bad[i].status) {
            fail_msg("%s: %s, not %s", bad[i].header, kvt_status_name(status),
                     kvt_status_name(bad[i].status));
        }
        if (strstr(message, bad[i].words) == NULL) fail_msg("%s: '%s'", bad[i].header, message);
    }
}

TEST(cut_files_are_refused)
{
    static const char header[] = HEADER(GOOD ", " TENSOR("b", "F16", "[3]", "[8, 14]"));
    uint8_t bytes[8 + sizeof header - 1 + 14] = {(uint8_t)(sizeof header - 1)};
    safetensors *file;
    memcpy(bytes + 8, header, sizeof header - 1);
    for (size_t size = 0; size < sizeof bytes; size++) {
        uint8_t *exact = test_alloc(size + 1);
        memcpy(exact, bytes, size);
        assert_true(safetensors_open_bytes("cut", exact, size, &file, NULL, 0) < 0);
        assert_null(file);
    }
    assert_ok(safetensors_open_bytes("whole", bytes, sizeof bytes, &file, NULL, 0));
    safetensors_close(file);
    for (int byte = 1; byte < 8; byte++) {
        bytes[byte] = 0xff; /* a header of up to 2^64 bytes */
        assert_int_equal(safetensors_open_bytes("huge", bytes, sizeof bytes, &file, NULL, 0),
                         KVT_E_CORRUPT);
    }
    char message[128] = "";
    assert_int_equal(safetensors_open("no-such-file", &file, message, sizeof message), KVT_E_GONE);
    assert_non_null(strstr(message, "no-such-file: "));
    assert_int_equal(safetensors_open(".", &file, message, sizeof message), KVT_E_CORRUPT);
}
