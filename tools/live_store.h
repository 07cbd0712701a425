/* SPDX-License-Identifier: Apache-2.0 */
/*
 * live_store.h - what the commands share that operate a store which `kvterrace serve` lends: the
 * connection, its errors in words, and the listing of entries. One thread.
 */
#ifndef TOOLS_LIVE_STORE_H
#define TOOLS_LIVE_STORE_H

#include "tools/command/command.h"

#include <kvterrace/names.h>

#define LIVE_KEY_DIGITS   64u
#define LIVE_SPACE_DIGITS 16u
#define LIVE_DEVICES_MAX  64u /* that are shown */

#define LIVE_CONNECT_OPTION                                                                        \
    SETTING_OPTION("serve.socket", "connect", 0, "PATH",                                           \
                   "Socket at which kvterrace serve lends the store (serve.socket)")

/* A store and the socket that it was reached by, whose text is the configuration's. */
typedef struct live_store {
    const command_common *common;
    const char *path;
    kvt_store *store;
} live_store;

/* Whether the settings name a socket. */
bool tools_live_is_named(const command_common *common);

/* Connects to the store that the settings name. EXIT_FINE, or a code after a message; the store is
 * closed with tools_live_close in every case. */
int tools_live_open(const command_common *common, live_store *live);
void tools_live_close(live_store *live);

/* From now on the first SIGINT or SIGTERM turns command_interrupted true, for loops over calls; the
 * next one ends the command, also while a server does not answer. */
void tools_live_catch_interrupts(void);

/* Says why a call failed; what: what was to be done, or "". Returns the exit code. */
int tools_live_fail(const live_store *live, kvt_status status, const char *what);

/* The device of a name: KVT_OK, KVT_END without one, or what kvt_device_stats_get says. */
KVT_NODISCARD kvt_status tools_live_device(const live_store *live, const char *name,
                                           kvt_device_stats *device);
const char *tools_live_device_state(kvt_device_state state);

/* Reads a key's digits. False: they are none. */
bool tools_live_read_key(const char *text, kvt_key *key);
/* Writes them; text has LIVE_KEY_DIGITS + 1 bytes. */
const char *tools_live_key_text(char *text, const kvt_key *key);

/* Checks the words of --space and --tenant, each of which may be NULL, before there is a
 * connection. EXIT_FINE, or EXIT_USAGE after a message. */
int tools_live_check_filter(const char *space, const char *tenant, kvt_clear_filter *filter);

/* Finds the space that stored entries have and whose digits begin so, where fewer than all were
 * given. EXIT_FINE, or a code after a message. */
int tools_live_find_space(const live_store *live, const char *space, kvt_clear_filter *filter);

/* Takes an entry of a listing; false ends it, for want of memory. */
typedef bool (*live_take)(void *context, const kvt_list_item *item);

/* Lists what a filter covers; NULL: all. EXIT_FINE, or a code after a message. */
int tools_live_list(const live_store *live, const kvt_clear_filter *filter, live_take take,
                    void *context);

#endif
