/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ls_command.c - kvterrace ls and rm: the entries of a lent store by their keys. One thread.
 */
#include "commands.h"
#include "live_store.h"

#include <stdlib.h>
#include <string.h>

/* ---- ls ---- */

typedef struct ls_arguments {
    command_common common;
    const char *space, *tenant;
    bool is_long;
    uint32_t limit; /* 0: none */
    kvt_clear_filter filter;
} ls_arguments;

static const command_option ls_rows[] = {
    LIVE_CONNECT_OPTION,
    TEXT_OPTION(ls_arguments, space, "space", 0, "HEX",
                "Entries of a space: the first 16 digits of its keys, or as many as tell it"),
    TEXT_OPTION(ls_arguments, tenant, "tenant", 0, "N", "Entries of a tenant"),
    FLAG_OPTION(ls_arguments, is_long, "long", 'l', "Also where each lies, and how large it is"),
    COUNT_OPTION(ls_arguments, limit, "limit", 1, 1000000000, "The first N keys alone"),
    {0},
};

/* What is listed, without order. */
typedef struct ls_entries {
    kvt_list_item *items;
    size_t count, room;
    size_t limit; /* SIZE_MAX: none */
} ls_entries;

static int ls_compare(const void *first, const void *second)
{
    const kvt_list_item *left = first, *right = second;
    return memcmp(left->key.bytes, right->key.bytes, sizeof left->key.bytes);
}

/* Sorts, drops what came twice, and what lies beyond the limit. */
static void ls_settle(ls_entries *entries)
{
    size_t kept = 0;
    if (entries->count == 0) return;
    qsort(entries->items, entries->count, sizeof *entries->items, ls_compare);
    for (size_t i = 1; i < entries->count; i++)
        if (ls_compare(&entries->items[kept], &entries->items[i]) != 0)
            entries->items[++kept] = entries->items[i];
    entries->count = kept + 1 < entries->limit ? kept + 1 : entries->limit;
}

static bool ls_take(void *context, const kvt_list_item *item)
{
    ls_entries *entries = context;
    if (entries->count == entries->room && entries->count / 2 > entries->limit) ls_settle(entries);
    if (entries->count == entries->room) {
        const size_t room = entries->room == 0 ? 4096 : 2 * entries->room;
        kvt_list_item *grown = realloc(entries->items, room * sizeof *grown);
        if (grown == NULL) return false;
        entries->items = grown;
        entries->room = room;
    }
    entries->items[entries->count++] = *item;
    return true;
}

static const char *ls_tier(kvt_tier tier)
{
    const char *name = kvt_tier_name((int)tier);
    return name != NULL ? name : "?";
}

static const char *ls_flags(char text[4], uint32_t flags)
{
    text[0] = flags & KVT_LIST_HELD ? 'h' : '-';
    text[1] = flags & KVT_LIST_COPY ? 'c' : '-';
    text[2] = flags & KVT_LIST_MOVING ? 'm' : '-';
    text[3] = '\0';
    return text;
}

/* "12 s", "3.4 h". */
static const char *ls_age(char text[32], double seconds)
{
    if (seconds < 100)
        (void)snprintf(text, 32, "%.0f s", seconds);
    else if (seconds < 6000)
        (void)snprintf(text, 32, "%.0f min", seconds / 60);
    else if (seconds < 360000)
        (void)snprintf(text, 32, "%.1f h", seconds / 3600);
    else
        (void)snprintf(text, 32, "%.1f d", seconds / 86400);
    return text;
}

static void ls_print(const ls_entries *entries, bool is_long)
{
    char key[LIVE_KEY_DIGITS + 1], variant[64], stored[32], bytes[32], age[32], flags[4];
    if (is_long)
        printf("%-4s %-20s %9s %9s %7s %6s %5s %8s %-3s %s\n", "tier", "variant", "stored", "bytes",
               "tokens", "tenant", "class", "age", "hcm", "key");
    for (size_t i = 0; i < entries->count; i++) {
        const kvt_list_item *item = &entries->items[i];
        if (is_long) {
            (void)kvt_variant_format(item->variant, variant, sizeof variant);
            printf("%-4s %-20s %9s %9s %7u %6u %5u %8s %-3s ", ls_tier(item->tier), variant,
                   format_bytes(stored, item->stored_bytes), format_bytes(bytes, item->bytes),
                   item->tokens, item->tenant, item->class_id, ls_age(age, item->age_seconds),
                   ls_flags(flags, item->flags));
        }
        printf("%s\n", tools_live_key_text(key, &item->key));
    }
}

static int ls_print_json(const ls_entries *entries)
{
    json_t *rows = json_array();
    for (size_t i = 0; i < entries->count; i++) {
        const kvt_list_item *item = &entries->items[i];
        char key[LIVE_KEY_DIGITS + 1], variant[64];
        (void)kvt_variant_format(item->variant, variant, sizeof variant);
        (void)json_array_append_new(
            rows,
            json_pack("{s:s, s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:b, s:b}", "key",
                      tools_live_key_text(key, &item->key), "tier", ls_tier(item->tier), "variant",
                      variant, "stored_bytes", (json_int_t)item->stored_bytes, "bytes",
                      (json_int_t)item->bytes, "copy_bytes", (json_int_t)item->copy_bytes, "tokens",
                      (json_int_t)item->tokens, "tenant", (json_int_t)item->tenant, "class",
                      (json_int_t)item->class_id, "age_seconds", item->age_seconds, "held",
                      (item->flags & KVT_LIST_HELD) != 0, "moving",
                      (item->flags & KVT_LIST_MOVING) != 0));
    }
    return command_print_document(
        json_pack("{s:s, s:o}", "schema", "kvterrace-entries-1", "entries", rows));
}

static int ls_check(void *context)
{
    ls_arguments *arguments = context;
    return tools_live_check_filter(arguments->space, arguments->tenant, &arguments->filter);
}

static int ls_run(void *context)
{
    ls_arguments *arguments = context;
    live_store live;
    ls_entries entries = {.limit = arguments->limit != 0 ? arguments->limit : SIZE_MAX};
    kvt_clear_filter *filter = &arguments->filter;
    int code = tools_live_open(&arguments->common, &live);
    tools_live_catch_interrupts();
    if (code == EXIT_FINE) code = tools_live_find_space(&live, arguments->space, filter);
    if (code == EXIT_FINE)
        code = tools_live_list(&live, filter->by_space || filter->by_tenant ? filter : NULL,
                               ls_take, &entries);
    tools_live_close(&live);
    ls_settle(&entries);
    if (code == EXIT_FINE && arguments->common.json)
        code = ls_print_json(&entries);
    else if (code == EXIT_FINE)
        ls_print(&entries, arguments->is_long);
    free(entries.items);
    return code;
}

const command_spec tools_ls_spec = {
    .name = "ls",
    .summary = "list the entries of a store that is lent",
    .about = "Lists the keys of the entries of a store that kvterrace serve lends, sorted.",
    .details = "With --long: tier and variant of the record, its bytes and those that a get gives, "
               "tokens, tenant, class, time since the put or since the open that found it, and "
               "letters: h, a lease holds it; c, it has a copy on SSD; m, it moves, or its put is "
               "not written yet. With --json all of that.\n\n"
               "Entries that come, go or move meanwhile may be missing.",
    .example = "  kvterrace ls --connect /run/kvt.sock --tenant 3 --long --limit 20",
    .options = ls_rows,
    .argument_bytes = sizeof(ls_arguments),
    .check = ls_check,
    .run = ls_run,
    .settings = SETTINGS_OWN,
};

/* ---- rm ---- */

typedef struct rm_arguments {
    command_common common;
    command_list keys;
} rm_arguments;

static const command_option rm_rows[] = {
    LIVE_CONNECT_OPTION,
    OPERANDS(rm_arguments, keys, "KEY", 1, 0, 0),
    {0},
};

static int rm_check(void *context)
{
    const rm_arguments *arguments = context;
    kvt_key key;
    for (size_t i = 0; i < arguments->keys.count; i++)
        if (!tools_live_read_key(arguments->keys.items[i], &key))
            return command_misuse("'%.100s' is no key: 64 hexadecimal digits, as ls prints them",
                                  arguments->keys.items[i]);
    return EXIT_FINE;
}

/* Removes the keys; what becomes of each is in the lists. */
static int rm_keys(const rm_arguments *arguments, const live_store *live, json_t *removed,
                   json_t *missing, json_t *held)
{
    for (size_t i = 0; i < arguments->keys.count; i++) {
        const char *text = arguments->keys.items[i];
        kvt_key key;
        const bool sound = tools_live_read_key(text, &key);
        const kvt_status status = sound ? kvt_store_delete(live->store, &key) : KVT_E_ARGUMENT;
        if (status != KVT_OK && status != KVT_MISS && status != KVT_BUSY)
            return tools_live_fail(live, status, text);
        (void)json_array_append_new(status == KVT_OK     ? removed
                                    : status == KVT_MISS ? missing
                                                         : held,
                                    json_string(text));
        if (status == KVT_OK || arguments->common.json) continue;
        fprintf(stderr, "%s: %s\n", text,
                status == KVT_MISS ? "not stored"
                                   : "a lease holds it: try again when it has ended");
    }
    return EXIT_FINE;
}

static int rm_run(void *context)
{
    const rm_arguments *arguments = context;
    live_store live;
    json_t *removed = json_array(), *missing = json_array(), *held = json_array();
    int code = tools_live_open(&arguments->common, &live);
    if (code == EXIT_FINE) code = rm_keys(arguments, &live, removed, missing, held);
    tools_live_close(&live);
    const size_t count = json_array_size(removed);
    const bool all = count == arguments->keys.count;
    if (code == EXIT_FINE && arguments->common.json)
        code =
            command_print_document(json_pack("{s:s, s:O, s:O, s:O}", "schema", "kvterrace-rm-1",
                                             "removed", removed, "missing", missing, "held", held));
    else if (count != 0)
        printf("removed %zu of %zu\n", count, arguments->keys.count);
    json_decref(removed);
    json_decref(missing);
    json_decref(held);
    return code == EXIT_FINE && !all ? EXIT_FAILED : code;
}

const command_spec tools_rm_spec = {
    .name = "rm",
    .summary = "remove entries of a store that is lent",
    .about = "Removes entries of a store that kvterrace serve lends, by their keys as kvterrace ls "
             "prints them, with their copies on SSD.",
    .details = "Exit code 1 when one of them is not stored, or when a lease holds it; the others "
               "are removed. A crash before the next kvterrace flush may bring back what lay on "
               "SSD.",
    .example = "  kvterrace ls --config kvt.ini --space 1f2e | xargs kvterrace rm -c kvt.ini",
    .options = rm_rows,
    .argument_bytes = sizeof(rm_arguments),
    .check = rm_check,
    .run = rm_run,
    .settings = SETTINGS_OWN,
};
