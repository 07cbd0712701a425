/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lent_store.h - a test's store as another process has it: KVT_TEST_LENT=1
 * (tests/support/absent_engine.c). Any thread.
 */
#ifndef TESTS_LENT_STORE_H
#define TESTS_LENT_STORE_H

#include <kvterrace/kvterrace.h>
#include <stdbool.h>

/* Lends a store by a server of its own, and connects to that. Aborts when it cannot. */
kvt_store *lent_store_open(kvt_store *own);

/* Closes a store that is connected so, its server and the store behind it. False: it is another
 * one. */
bool lent_store_close(kvt_store *store);

/* The store behind one that is connected so; another one itself. */
kvt_store *lent_store_own(kvt_store *store);

#endif
