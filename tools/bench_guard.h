/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_guard.h - a bench in a process of its own, so that an interruption ends it at any point and
 * what it left is removed. One thread.
 */
#ifndef TOOLS_BENCH_GUARD_H
#define TOOLS_BENCH_GUARD_H

#include <stdbool.h>

/* Forks. False in the child, which runs the bench; true in the process that waited for it, with the
 * exit code to leave with. SIGINT or SIGTERM kills the child, removes its scratch folder, and gives
 * EXIT_INTERRUPTED; rows of text that were finished are
 * printed by then, a JSON document is not. Call it before there are threads. */
bool bench_guard(bool json, int *code_out);

#endif
