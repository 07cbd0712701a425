/* SPDX-License-Identifier: Apache-2.0 */
/*
 * live_store.c - the connection of the commands that operate a lent store. One thread.
 *
 * They take no memory of the store's: a request's own record is all that they send.
 */
#include "live_store.h"

#include "base/config_values.h"
#include "base/hex.h"

#include <kvterrace/connect.h>
#include <kvterrace/key.h>

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <libgen.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define LIVE_DEPTH      8u
#define LIVE_STAGING    65536u
#define LIVE_LIST_ITEMS 4096u

/* ---- who has a catalog ---- */

/* Whether a process has a file open, as far as this user may see. */
static bool process_has(const char *process, const char *file)
{
    char folder[64], link[PATH_MAX];
    bool has = false;
    (void)snprintf(folder, sizeof folder, "/proc/%.20s/fd", process);
    DIR *open = opendir(folder);
    if (open == NULL) return false;
    for (const struct dirent *entry; !has && (entry = readdir(open)) != NULL;) {
        const ssize_t length = readlinkat(dirfd(open), entry->d_name, link, sizeof link - 1);
        if (length <= 0) continue;
        link[length] = '\0';
        has = strcmp(link, file) == 0;
    }
    closedir(open);
    return has;
}

/* "; process 7 (kvterrace) has catalog.db open", where one does: a store has the lock beside its
 * catalog open for as long as it has the catalog. */
static void catalog_owner(const char *catalog, char *text, size_t size)
{
    char path[PATH_MAX], lock[PATH_MAX], name[32] = "?", *end;
    text[0] = '\0';
    if (catalog == NULL || snprintf(path, sizeof path, "%s-lock", catalog) >= (int)sizeof path ||
        realpath(path, lock) == NULL)
        return;
    DIR *processes = opendir("/proc");
    if (processes == NULL) return;
    for (const struct dirent *entry; text[0] == '\0' && (entry = readdir(processes)) != NULL;) {
        if (!isdigit((unsigned char)entry->d_name[0]) || !process_has(entry->d_name, lock))
            continue;
        (void)snprintf(path, sizeof path, "/proc/%.20s/comm", entry->d_name);
        FILE *file = fopen(path, "re");
        if (file != NULL && fgets(name, sizeof name, file) != NULL &&
            (end = strchr(name, '\n')) != NULL)
            *end = '\0';
        if (file != NULL) (void)fclose(file);
        (void)snprintf(text, size, "; process %.20s (%.20s) has %.200s open", entry->d_name, name,
                       catalog);
    }
    closedir(processes);
}

/* ---- the connection ---- */

bool tools_live_is_named(const command_common *common)
{
    return kvt_config_text(common->config, "serve.socket") != NULL;
}

/* Whose server it may be: this user's, root's, and that of the one whom the socket's folder belongs
 * to, where nobody else can have put a socket there. */
static uint32_t live_users(const char *path, uint32_t users[3])
{
    char copy[PATH_MAX];
    struct stat facts;
    users[0] = geteuid();
    users[1] = 0;
    if (snprintf(copy, sizeof copy, "%s", path) >= (int)sizeof copy) return 2;
    if (stat(dirname(copy), &facts) != 0 || (facts.st_mode & 022) != 0) return 2;
    users[2] = facts.st_uid;
    return 3;
}

int tools_live_open(const command_common *common, live_store *live)
{
    static const char *const sections[] = {NULL};
    char message[256] = "", owner[320] = "", text[2 * COMMAND_MESSAGE_BYTES];
    const char *catalog = kvt_config_text(common->config, "store.catalog");
    uint32_t users[3];
    *live = (live_store){.common = common, .path = kvt_config_text(common->config, "serve.socket")};
    if (live->path == NULL)
        return command_misuse("no store is named: --connect PATH, or --config FILE with "
                              "serve.socket");
    const int code = command_report_unused(common, sections);
    if (code != EXIT_FINE) return code;
    const kvt_connect_options options = {.struct_size = sizeof options,
                                         .depth = LIVE_DEPTH,
                                         .name = common->spec->name,
                                         .staging_bytes = LIVE_STAGING,
                                         .users = users,
                                         .user_count = live_users(live->path, users)};
    const kvt_status status =
        kvt_connect(live->path, &options, &live->store, message, sizeof message);
    if (status == KVT_OK) return EXIT_FINE;
    if (status == KVT_E_GONE) catalog_owner(catalog, owner, sizeof owner);
    /* Some of the messages begin with the path. */
    const char *why = message[0] != '\0' ? message : kvt_status_text(status);
    const bool named = strncmp(why, live->path, strlen(live->path)) == 0;
    (void)snprintf(text, sizeof text, "%.107s%s%s%s", named ? "" : live->path, named ? "" : ": ",
                   why, owner);
    return command_fail(status, text);
}

void tools_live_close(live_store *live)
{
    kvt_store_close(live->store);
    live->store = NULL;
}

void tools_live_catch_interrupts(void)
{
    static const int numbers[] = {SIGINT, SIGTERM};
    struct sigaction action;
    command_catch_interrupts();
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        if (sigaction(numbers[i], NULL, &action) != 0) continue;
        action.sa_flags |= (int)SA_RESETHAND;
        (void)sigaction(numbers[i], &action, NULL);
    }
}

int tools_live_fail(const live_store *live, kvt_status status, const char *what)
{
    char text[COMMAND_MESSAGE_BYTES];
    const char *why = kvt_status_text(status);
    if (status == KVT_E_READ_ONLY)
        why = "the server does not let this user do that: serve.operators says who may";
    if (status == KVT_E_GONE) why = "the server is gone";
    (void)snprintf(text, sizeof text, "%.120s: %.150s%s%s", live->path, what,
                   what[0] != '\0' ? ": " : "", why);
    const int code = command_fail(status, text);
    /* A file that is not there is wrong usage; a server that goes away is not. */
    return status == KVT_E_GONE ? EXIT_FAILED : code;
}

/* ---- devices ---- */

kvt_status tools_live_device(const live_store *live, const char *name, kvt_device_stats *device)
{
    kvt_status status;
    for (size_t i = 0;; i++) {
        *device = (kvt_device_stats){.struct_size = sizeof *device};
        status = kvt_device_stats_get(live->store, i, device);
        if (status != KVT_OK || strcmp(device->name, name) == 0) return status;
    }
}

const char *tools_live_device_state(kvt_device_state state)
{
    static const char *const names[] = {"absent", "serving", "draining", "gone"};
    return (unsigned)state < sizeof names / sizeof *names ? names[state] : "?";
}

/* ---- keys and filters ---- */

bool tools_live_read_key(const char *text, kvt_key *key)
{
    return strlen(text) == LIVE_KEY_DIGITS && base_hex_read(text, key->bytes, sizeof key->bytes);
}

const char *tools_live_key_text(char *text, const kvt_key *key)
{
    static const char digits[] = "0123456789abcdef";
    for (size_t i = 0; i < sizeof key->bytes; i++) {
        text[2 * i] = digits[key->bytes[i] >> 4];
        text[2 * i + 1] = digits[key->bytes[i] & 15];
    }
    text[LIVE_KEY_DIGITS] = '\0';
    return text;
}

int tools_live_check_filter(const char *space, const char *tenant, kvt_clear_filter *filter)
{
    char *end;
    *filter = (kvt_clear_filter){
        .struct_size = sizeof *filter, .by_space = space != NULL, .by_tenant = tenant != NULL};
    if (space != NULL) {
        const size_t digits = strspn(space, "0123456789abcdefABCDEF");
        if (digits == 0 || digits > LIVE_SPACE_DIGITS || space[digits] != '\0')
            return command_misuse("--space: '%.100s' is not 16 hexadecimal digits, or the first of "
                                  "them",
                                  space);
        filter->space = strtoull(space, NULL, 16);
    }
    if (tenant != NULL) {
        errno = 0;
        const unsigned long number = strtoul(tenant, &end, 10);
        if (!isdigit((unsigned char)tenant[0]) || errno != 0 || *end != '\0' ||
            number >= KVT_TENANTS_MAX)
            return command_misuse("--tenant: '%.100s' is not from 0 to %u", tenant,
                                  KVT_TENANTS_MAX - 1);
        filter->tenant = (uint32_t)number;
    }
    return EXIT_FINE;
}

/* The spaces whose digits begin as the given ones. */
typedef struct space_search {
    uint64_t begin;
    unsigned shift;    /* of digits that were not given */
    uint64_t found[4]; /* different ones; further ones are not kept */
    size_t count;
} space_search;

static bool take_space(void *context, const kvt_list_item *item)
{
    space_search *search = context;
    const uint64_t space = kvt_key_space(&item->key);
    if (space >> search->shift != search->begin) return true;
    for (size_t i = 0; i < search->count; i++)
        if (search->found[i] == space) return true;
    if (search->count < sizeof search->found / sizeof *search->found)
        search->found[search->count++] = space;
    return true;
}

int tools_live_find_space(const live_store *live, const char *space, kvt_clear_filter *filter)
{
    const size_t digits = space != NULL ? strlen(space) : LIVE_SPACE_DIGITS;
    if (digits == LIVE_SPACE_DIGITS) return EXIT_FINE;
    space_search search = {.begin = filter->space,
                           .shift = (unsigned)(4 * (LIVE_SPACE_DIGITS - digits))};
    char text[COMMAND_MESSAGE_BYTES];
    const int code = tools_live_list(live, NULL, take_space, &search);
    if (code != EXIT_FINE) return code;
    if (search.count == 1) {
        filter->space = search.found[0];
        return EXIT_FINE;
    }
    size_t used = (size_t)snprintf(text, sizeof text, "--space: %s %s%s",
                                   search.count == 0 ? "no entry's space begins with"
                                                     : "more than one space begins with",
                                   space, search.count == 0 ? "" : ":");
    for (size_t i = 0; i < search.count; i++)
        used += (size_t)snprintf(text + used, sizeof text - used, " %016llx",
                                 (unsigned long long)search.found[i]);
    return command_fail(KVT_E_ARGUMENT, text);
}

int tools_live_list(const live_store *live, const kvt_clear_filter *filter, live_take take,
                    void *context)
{
    kvt_list_item *items = calloc(LIVE_LIST_ITEMS, sizeof *items);
    uint64_t cursor = 0;
    size_t count;
    kvt_status status = items != NULL ? KVT_OK : KVT_E_MEMORY;
    while (status == KVT_OK) {
        items[0].struct_size = sizeof *items;
        status = kvt_store_list(live->store, filter, &cursor, items, LIVE_LIST_ITEMS, &count);
        for (size_t i = 0; status == KVT_OK && i < count; i++)
            if (!take(context, &items[i])) status = KVT_E_MEMORY;
        if (command_interrupted()) status = KVT_E_CANCELLED;
    }
    free(items);
    return status == KVT_END ? EXIT_FINE : tools_live_fail(live, status, "the list of entries");
}
