/* SPDX-License-Identifier: Apache-2.0 */
/*
 * status.h - the one error convention of kvterrace.
 *
 * Every function that can fail returns a kvt_status: 0 is success, a negative value is an error,
 * a positive value is a normal other outcome (a miss, a busy device, an entry stored raw).
 * Data leaves through trailing `*_out` parameters, which are valid only as each function states.
 * Values are pinned and grouped by tens; new ones are appended, none is ever renumbered.
 */
#ifndef KVTERRACE_STATUS_H
#define KVTERRACE_STATUS_H

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define KVT_API       __attribute__((visibility("default")))
#define KVT_NODISCARD __attribute__((warn_unused_result))
#else
#define KVT_API
#define KVT_NODISCARD
#endif

/* Marks what may change or go in any release: sparse.h, coding.h, basis.h, remote.h and the calls
 * about what was learned. All other functions stay as they are until a new major version. A program
 * that defines KVT_STABLE_ONLY before its first header does not compile with a call of a marked one
 * (gcc 12, clang 14). */
#if defined(KVT_STABLE_ONLY) && defined(__GNUC__)
#define KVT_EXPERIMENTAL __attribute__((unavailable("experimental, and KVT_STABLE_ONLY is set")))
#else
#define KVT_EXPERIMENTAL
#endif

typedef int kvt_status;

enum {
    KVT_OK = 0,

    /* Normal other outcomes. */
    KVT_MISS = 1,    /* the entry is not stored, or its load failed: recompute it */
    KVT_BUSY = 2,    /* no room in a queue now: flush, reap, try again */
    KVT_RAW = 3,     /* the encoding did not shrink the entry, which was stored raw */
    KVT_QUEUED = 4,  /* accepted; the completion comes later */
    KVT_EXISTS = 5,  /* the entry is stored already; nothing was written */
    KVT_REFUSED = 6, /* the policy chose not to store the entry */
    KVT_END = 7,     /* a reader has no further item */
    KVT_COARSE = 8,  /* the entry is there in its coarse form; its refinement has not come */

    /* The caller's arguments and settings. */
    KVT_E_ARGUMENT = -10,    /* an argument is outside what the function documents */
    KVT_E_CONFIG = -11,      /* a setting is unknown, malformed or without effect */
    KVT_E_UNSUPPORTED = -12, /* valid, but not available in this build or on this machine */
    KVT_E_STATE = -13,       /* the call is not allowed in the object's present state */

    /* Memory and space. */
    KVT_E_MEMORY = -20, /* an allocation failed */
    KVT_E_SPACE = -21,  /* the device, tier or buffer is too small or full */
    KVT_E_THREAD = -22, /* the system starts no further thread for this process */

    /* Devices. */
    KVT_E_IO = -30,        /* a read or write failed */
    KVT_E_GONE = -31,      /* the device is missing or has vanished */
    KVT_E_READ_ONLY = -32, /* the device refuses writes */
    KVT_E_LOCKED = -33,    /* another process has it open */
    KVT_E_TIMEOUT = -34,   /* the deadline passed first */

    /* Stored bytes. */
    KVT_E_CORRUPT = -40,  /* bytes fail their checksum or their format */
    KVT_E_VERSION = -41,  /* written by a format version that this build does not read */
    KVT_E_MISMATCH = -42, /* sound, but belongs to another pool, machine or layout */

    /* Databases and input files. */
    KVT_E_DATABASE = -50, /* SQLite reports an error */
    KVT_E_PARSE = -51,    /* a text file is malformed; the message names file and line */
    KVT_E_CANCELLED = -52 /* stopped by the caller before it finished */
};

/* The name of a status, such as "KVT_E_CORRUPT"; "unknown status" for any other value.
 * Never NULL; static storage. Any thread. */
KVT_API const char *kvt_status_name(kvt_status status);

/* One sentence for a person, such as "bytes fail their checksum or their format".
 * Never NULL; static storage. Any thread. */
KVT_API const char *kvt_status_text(kvt_status status);

#ifdef __cplusplus
}
#endif

#endif
