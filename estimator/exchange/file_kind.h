/* SPDX-License-Identifier: Apache-2.0 */
/*
 * file_kind.h - what a file is that is not what it was given as, for messages.
 *
 *     const char *kind = file_kind_of(head, bytes);
 *     if (kind != NULL) ... "a.jsonl:1: this is compressed with gzip: unpack it"
 *
 * Only what is told by its first bytes without doubt. Pure; any thread.
 */
#ifndef PROFILE_FILE_KIND_H
#define PROFILE_FILE_KIND_H

#include <stddef.h>

/* Words behind "this is ", from the first bytes of a file, of which 262 are enough; NULL: it may be
 * plain text, or anything. A constant. */
const char *file_kind_of(const void *head, size_t bytes);

#endif
