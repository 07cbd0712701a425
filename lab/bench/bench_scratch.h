/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_scratch.h - the folder that a bench puts its files into, and its removal: by the bench, or
 * by the process above it when the bench was interrupted.
 *
 * Thread rule: one bench at a time.
 */
#ifndef BENCH_BENCH_SCRATCH_H
#define BENCH_BENCH_SCRATCH_H

#include <stddef.h>

/* Makes the folder parent/kvterrace-NAME-XXXXXX (parent NULL: /var/tmp). Not 0: it cannot be made,
 * and errno says why. One at a time. */
int bench_scratch_make(const char *parent, const char *name, char *folder, size_t size);

/* Removes the folder that was made last with the files in it; nothing when there is none. */
void bench_scratch_remove(void);

/* From now on the folder's name is known to the processes on both sides of a fork. Call it before
 * the fork. Not 0: no memory. */
int bench_scratch_share(void);

#endif
