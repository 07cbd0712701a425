/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_estimator_text_file.c - texts that users name, plain and packed: every cut of a packed file,
 * one that unpacks to more than is taken, and what is no text.
 */
#include "cases.h"

#include "estimator/exchange/text_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <zstd.h>

static char folder[64], plain[96], packed[96], message[256];

static int make_folder(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "estimator-text-XXXXXX");
    if (mkdtemp(folder) == NULL) return -1;
    snprintf(plain, sizeof plain, "%s/rows", folder);
    snprintf(packed, sizeof packed, "%s/rows.zst", folder);
    return 0;
}

static int remove_folder(void **state)
{
    (void)state;
    return rmdir(folder);
}

static void put(const char *path, const void *bytes, size_t count)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, count, file), count);
    assert_int_equal(fclose(file), 0);
}

static void expect_text(const char *path, const char *opened, const char *text)
{
    text_file file;
    kvt_status status = text_file_read(&file, path, message, sizeof message);
    if (status != KVT_OK) fail_msg("%s", message);
    assert_string_equal(file.path, opened);
    assert_int_equal(file.size, strlen(text));
    assert_memory_equal(file.bytes, text, file.size);
    text_file_free(&file);
}

static void expect_refused(const char *path, kvt_status expected, const char *reason)
{
    text_file file;
    assert_int_equal(text_file_read(&file, path, message, sizeof message), expected);
    if (strstr(message, reason) == NULL) fail_msg("%s, not %s", message, reason);
    assert_null(file.bytes);
}

TEST_ALL(make_folder, remove_folder);

TEST(plain_and_packed_are_read)
{
    static const char text[] = "{\"a\": 1}\nand more\n";
    char frames[2 * 4096];
    expect_refused(plain, KVT_E_GONE, "rows: No such file");
    size_t bytes = ZSTD_compress(frames, 4096, text, strlen(text), 3);
    assert_false(ZSTD_isError(bytes));
    put(packed, frames, bytes);
    expect_text(packed, packed, text);
    expect_text(plain, packed, text); /* what is not there is looked for with .zst behind it */
    for (size_t cut = 0; cut < bytes; cut++) {
        put(packed, frames, cut);
        expect_refused(packed, KVT_E_PARSE, "rows.zst: ");
    }
    memcpy(frames + bytes, frames, bytes); /* two frames */
    put(packed, frames, 2 * bytes);
    expect_text(packed, packed, "{\"a\": 1}\nand more\n{\"a\": 1}\nand more\n");
    put(plain, text, strlen(text));
    expect_text(plain, plain, text);
    put(plain, text, 0);
    expect_text(plain, plain, "");
    assert_int_equal(unlink(plain), 0);
    assert_int_equal(unlink(packed), 0);
}

/* A few kilobytes that unpack to more than anyone measures are refused, not swallowed. */
TEST(a_bomb_is_refused)
{
    const size_t bytes = (size_t)80 << 20, bound = ZSTD_compressBound(bytes);
    char *zeros = test_zeros(bytes), *bomb = test_alloc(bound);
    put(packed, bomb, ZSTD_compress(bomb, bound, zeros, bytes, 1));
    expect_refused(packed, KVT_E_PARSE, "larger than 64 MiB unpacked");
    put(plain, zeros, bytes);
    expect_refused(plain, KVT_E_PARSE, "larger than 64 MiB");
    assert_int_equal(unlink(plain), 0);
    assert_int_equal(unlink(packed), 0);
}

TEST(what_is_no_text_is_named)
{
    char path[5000];
    put(plain, "\x1f\x8b", 2);
    expect_refused(plain, KVT_E_PARSE, "this is compressed with gzip: unpack it");
    put(plain, "\xef\xbb\xbf{}", 5);
    expect_refused(plain, KVT_E_PARSE, "this is text with a byte order mark");
    put(plain, "SQLite format 3", 15);
    expect_refused(plain, KVT_E_PARSE, "this is an SQLite database");
    assert_int_equal(unlink(plain), 0);
    expect_refused(folder, KVT_E_IO, "Is a directory");
    memset(path, 'a', sizeof path);
    path[sizeof path - 1] = '\0';
    expect_refused(path, KVT_E_GONE, "aaa");
}
