/* SPDX-License-Identifier: Apache-2.0 */
/*
 * catalog_log.c - reads SQLite's write-ahead log of a catalog frame by frame, to find frames that
 * SQLite would forget although they were committed. The file changes nothing and uses no SQLite
 * call. The layout is SQLite's (sqlite.org/fileformat2.html, 4).
 *
 *     header, 32 bytes   magic, version, page bytes, checkpoint, salt 1, salt 2, checksum (2 x u32)
 *     frame              page, pages after a commit (else 0), salt 1, salt 2, checksum; the page
 *
 * A frame's checksum continues the checksum of the frame before it. The salts change when the log
 * begins anew, so frames of an earlier use have other salts. Numbers are big-endian; the lowest bit
 * of the magic says in which order the words are summed.
 *
 * Thread rule: as catalog_log.h.
 */
#include "store/catalog_log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LOG_HEADER_BYTES = 32, LOG_FRAME_BYTES = 24, LOG_PAGE_BYTES_MAX = 65536 };

#define LOG_MAGIC 0x377f0682u

typedef struct log_sum {
    uint32_t words[2];
} log_sum;

typedef struct log_reading {
    int file;
    uint64_t bytes;
    bool big_endian; /* the words that are summed */
    uint32_t page_bytes;
    unsigned char header[LOG_HEADER_BYTES];
    unsigned char *frame;
} log_reading;

/* A number of the log: 32 bits, big-endian. */
static uint32_t log_number(const unsigned char *at)
{
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

/* A word as the checksum sees it. */
static uint32_t log_word(const unsigned char *at, bool big_endian)
{
    if (big_endian) return log_number(at);
    return (uint32_t)at[3] << 24 | (uint32_t)at[2] << 16 | (uint32_t)at[1] << 8 | at[0];
}

/* Continues a checksum over bytes, eight at a time. */
static log_sum log_add(const log_reading *log, log_sum sum, const unsigned char *data, size_t bytes)
{
    for (size_t i = 0; i + 8 <= bytes; i += 8) {
        sum.words[0] += log_word(data + i, log->big_endian) + sum.words[1];
        sum.words[1] += log_word(data + i + 4, log->big_endian) + sum.words[0];
    }
    return sum;
}

/* The checksum that the log holds at a place. */
static log_sum log_stored_sum(const unsigned char *at)
{
    return (log_sum){{log_number(at), log_number(at + 4)}};
}

/* Whether two checksums of SQLite's log are the same in both halves. */
static bool log_equal(log_sum one, log_sum other)
{
    return one.words[0] == other.words[0] && one.words[1] == other.words[1];
}

/* Reads all bytes at an offset; false at an error or at the end of the file. */
static bool log_read_at(const log_reading *log, void *out, size_t bytes, uint64_t offset)
{
    size_t done = 0;
    while (done < bytes) {
        ssize_t got = pread(log->file, (char *)out + done, bytes - done, (off_t)(offset + done));
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return false;
        done += (size_t)got;
    }
    return true;
}

/* Whether the header has the magic, a legal page size and its checksum. SQLite makes the header
 * durable before it writes a frame, so an interrupted write leaves no frame behind a bad header. */
static bool log_header_is_sound(log_reading *log)
{
    uint32_t magic = log_number(log->header);
    log->big_endian = (magic & 1) != 0;
    log->page_bytes = log_number(log->header + 8);
    if ((magic & ~1u) != LOG_MAGIC) return false;
    if (log->page_bytes < 512 || log->page_bytes > LOG_PAGE_BYTES_MAX) return false;
    if ((log->page_bytes & (log->page_bytes - 1)) != 0) return false;
    return log_equal(log_add(log, (log_sum){{0, 0}}, log->header, 24),
                     log_stored_sum(log->header + 24));
}

/* Whether the frame has the header's salts and a checksum that continues `before`. */
static bool log_frame_fits(const log_reading *log, log_sum before)
{
    log_sum sum = log_add(log, before, log->frame, 8);
    sum = log_add(log, sum, log->frame + LOG_FRAME_BYTES, log->page_bytes);
    return memcmp(log->frame + 8, log->header + 16, 8) == 0 &&
           log_equal(sum, log_stored_sum(log->frame + 16));
}

/* Whether a frame that fits follows on a commit that lies at or behind the first bad frame. */
static kvt_status log_check_frames(const log_reading *log)
{
    const uint64_t frame_bytes = LOG_FRAME_BYTES + log->page_bytes;
    log_sum before = log_stored_sum(log->header + 24);
    bool broken = false, committed = false;
    for (uint64_t at = LOG_HEADER_BYTES; at + frame_bytes <= log->bytes; at += frame_bytes) {
        if (!log_read_at(log, log->frame, frame_bytes, at)) return KVT_E_IO;
        bool fits = log_frame_fits(log, before);
        if (broken && committed && fits) return KVT_E_CORRUPT;
        broken = broken || !fits;
        committed = broken && memcmp(log->frame + 8, log->header + 16, 8) == 0 &&
                    log_number(log->frame + 4) != 0;
        before = log_stored_sum(log->frame + 16);
    }
    return KVT_OK;
}

/* Checks header and frames. KVT_E_CORRUPT: the log was damaged; an unfinished write is KVT_OK. */
static kvt_status log_check(log_reading *log)
{
    static const unsigned char zeros[LOG_FRAME_BYTES];
    unsigned char first[LOG_FRAME_BYTES];
    if (log->bytes < LOG_HEADER_BYTES + sizeof first) return KVT_OK;
    if (!log_read_at(log, log->header, sizeof log->header, 0)) return KVT_E_IO;
    if (!log_header_is_sound(log)) {
        if (!log_read_at(log, first, sizeof first, LOG_HEADER_BYTES)) return KVT_E_IO;
        return memcmp(first, zeros, sizeof first) != 0 ? KVT_E_CORRUPT : KVT_OK;
    }
    log->frame = malloc(LOG_FRAME_BYTES + log->page_bytes);
    if (log->frame == NULL) return KVT_E_MEMORY;
    kvt_status status = log_check_frames(log);
    free(log->frame);
    return status;
}

kvt_status catalog_log_check(const char *catalog_path, uint64_t *bytes_out)
{
    char *path;
    struct stat facts;
    log_reading log = {.file = -1};
    *bytes_out = 0;
    if (asprintf(&path, "%s-wal", catalog_path) < 0) return KVT_E_MEMORY;
    log.file = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    int os_error = errno;
    free(path);
    if (log.file < 0) return os_error == ENOENT ? KVT_OK : KVT_E_IO;
    kvt_status status = fstat(log.file, &facts) == 0 ? KVT_OK : KVT_E_IO;
    if (status == KVT_OK && !S_ISREG(facts.st_mode)) status = KVT_E_CORRUPT;
    if (status == KVT_OK) {
        log.bytes = (uint64_t)facts.st_size;
        *bytes_out = log.bytes;
        status = log_check(&log);
    }
    close(log.file);
    return status;
}
