/* SPDX-License-Identifier: Apache-2.0 */
/* file_kind.c - the first bytes of formats that are taken for others: file_kind.h. */
#include "estimator/exchange/file_kind.h"

#include <string.h>

static const struct {
    const char *words;
    size_t at, length;
    const char *bytes;
} file_kinds[] = {
    {"compressed with gzip: unpack it", 0, 2, "\x1f\x8b"},
    {"compressed with zstd: unpack it", 0, 4, "\x28\xb5\x2f\xfd"},
    {"compressed with xz: unpack it", 0, 6,
     "\xfd"
     "7zXZ"},
    {"compressed with bzip2: unpack it", 0, 3, "BZh"},
    {"a zip archive: unpack it", 0, 4, "PK\x03\x04"},
    {"text with a byte order mark: save it without one", 0, 3, "\xef\xbb\xbf"},
    {"text in UTF-16: save it as UTF-8", 0, 2, "\xff\xfe"},
    {"text in UTF-16: save it as UTF-8", 0, 2, "\xfe\xff"},
    {"a Parquet file: convert it to lines of JSON or CSV", 0, 4, "PAR1"},
    {"an Arrow file: convert it to lines of JSON or CSV", 0, 6, "ARROW1"},
    {"an array of NumPy", 0, 6, "\x93NUMPY"},
    {"a tar archive: unpack it", 257, 5, "ustar"},
    {"an SQLite database", 0, 15, "SQLite format 3"},
    {"a file of GGUF", 0, 4, "GGUF"},
    /* The length of a header of less than 4 GiB, then the header. */
    {"a safetensors file", 4, 6, "\0\0\0\0{\""},
};

const char *file_kind_of(const void *head, size_t bytes)
{
    for (size_t i = 0; i < sizeof file_kinds / sizeof file_kinds[0]; i++) {
        if (bytes >= file_kinds[i].at + file_kinds[i].length &&
            memcmp((const char *)head + file_kinds[i].at, file_kinds[i].bytes,
                   file_kinds[i].length) == 0)
            return file_kinds[i].words;
    }
    return NULL;
}
