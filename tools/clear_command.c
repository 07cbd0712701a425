/* SPDX-License-Identifier: Apache-2.0 */
/*
 * clear_command.c - kvterrace clear: entries of a lent store; or, without one, copies for other
 * hosts stop counting, which is a clear of a store that keeps nothing itself, over the engine of a
 * configuration. One thread.
 */
#include "commands.h"
#include "live_store.h"

#include "base/clock.h"

#include <kvterrace/names.h>
#include <kvterrace/remote.h>

#include <string.h>

#define CLEAR_ROOM    (UINT64_C(1) << 20) /* bytes of memory that a store asks for */
#define CLEAR_WAIT_NS UINT64_C(10000000000)

typedef struct clear_arguments {
    command_common common;
    const char *space;
    const char *tenant;
    bool everything, copies, yes;
    kvt_clear_filter filter;
} clear_arguments;

static const command_option clear_rows[] = {
    LIVE_CONNECT_OPTION,
    TEXT_OPTION(clear_arguments, space, "space", 0, "HEX",
                "A space: the first 16 digits of its keys; of a lent store as many as tell it"),
    TEXT_OPTION(clear_arguments, tenant, "tenant", 0, "N", "A tenant"),
    FLAG_OPTION(clear_arguments, everything, "everything", 0, "All of the store or namespace"),
    FLAG_OPTION(clear_arguments, yes, "yes", 'y',
                "Remove the entries of a lent store; without it they are counted alone"),
    FLAG_OPTION(clear_arguments, copies, "copies", 0,
                "Copies for other hosts alone, without the store of serve.socket"),
    {0},
};

static int clear_check(void *context)
{
    clear_arguments *arguments = context;
    kvt_clear_filter *filter = &arguments->filter;
    const int code = tools_live_check_filter(arguments->space, arguments->tenant, filter);
    if (code != EXIT_FINE) return code;
    filter->everything = arguments->everything;
    if ((filter->by_space || filter->by_tenant) == filter->everything)
        return command_misuse("--space, --tenant, both, or --everything says what to clear");
    return EXIT_FINE;
}

/* ---- the entries of a lent store ---- */

/* What a clear would remove. */
typedef struct clear_counts {
    uint64_t entries[KVT_TIER_PLACES], bytes[KVT_TIER_PLACES]; /* of records */
    uint64_t all, copies, copy_bytes, held;
} clear_counts;

static bool clear_count(void *context, const kvt_list_item *item)
{
    clear_counts *counts = context;
    const bool held = (item->flags & KVT_LIST_HELD) != 0;
    counts->held += held;
    if (held || (unsigned)item->tier >= KVT_TIER_PLACES) return true;
    counts->all++;
    counts->entries[item->tier]++;
    counts->bytes[item->tier] += item->stored_bytes;
    counts->copies += item->copy_bytes != 0;
    counts->copy_bytes += item->copy_bytes;
    return true;
}

static int clear_print(const clear_arguments *arguments, const clear_counts *counts, bool removed,
                       uint64_t removed_count)
{
    char text[32];
    json_t *tiers = json_object();
    for (int tier = KVT_TIER_HBM; tier < KVT_TIER_PLACES && kvt_tier_name(tier) != NULL; tier++) {
        if (counts->entries[tier] == 0) continue;
        (void)json_object_set_new(tiers, kvt_tier_name(tier),
                                  json_pack("{s:I, s:I}", "entries",
                                            (json_int_t)counts->entries[tier], "bytes",
                                            (json_int_t)counts->bytes[tier]));
        if (arguments->common.json) continue;
        printf("%-6s %10llu entries %10s\n", kvt_tier_name(tier),
               (unsigned long long)counts->entries[tier], format_bytes(text, counts->bytes[tier]));
    }
    if (arguments->common.json)
        return command_print_document(json_pack(
            "{s:s, s:b, s:I, s:o, s:I, s:I, s:I, s:I}", "schema", "kvterrace-clear-1", "cleared",
            removed, "entries", (json_int_t)counts->all, "tiers", tiers, "copies",
            (json_int_t)counts->copies, "copy_bytes", (json_int_t)counts->copy_bytes, "held",
            (json_int_t)counts->held, "removed", (json_int_t)removed_count));
    json_decref(tiers);
    if (counts->copies != 0)
        printf("copies %10llu on SSD   %10s\n", (unsigned long long)counts->copies,
               format_bytes(text, counts->copy_bytes));
    if (counts->held != 0)
        printf("held   %10llu by leases, which stay\n", (unsigned long long)counts->held);
    if (removed)
        printf("removed %llu entries\n", (unsigned long long)removed_count);
    else
        printf("nothing was removed: --yes removes %llu entries\n",
               (unsigned long long)counts->all);
    return EXIT_FINE;
}

static int clear_entries(clear_arguments *arguments)
{
    live_store live;
    clear_counts counts = {.all = 0};
    uint64_t removed = 0;
    int code = tools_live_open(&arguments->common, &live);
    if (code == EXIT_FINE)
        code = tools_live_find_space(&live, arguments->space, &arguments->filter);
    if (code == EXIT_FINE) code = tools_live_list(&live, &arguments->filter, clear_count, &counts);
    if (code == EXIT_FINE) {
        const kvt_status status =
            arguments->yes ? kvt_store_clear(live.store, &arguments->filter, &removed) : KVT_OK;
        if (status == KVT_OK || status == KVT_BUSY)
            code = clear_print(arguments, &counts, arguments->yes, removed);
        if (code == EXIT_FINE && status != KVT_OK)
            code = tools_live_fail(
                &live, status,
                status == KVT_BUSY ? "leases hold some; again when they have ended" : "clear");
    }
    tools_live_close(&live);
    return code;
}

/* ---- copies for other hosts ---- */

/* Clears, and waits until the engine has it. */
static int clear_copies(const clear_arguments *arguments, kvt_store *store)
{
    kvt_remote_stats stats = {.struct_size = sizeof stats};
    const uint64_t end_ns = base_clock_ns() + CLEAR_WAIT_NS;
    kvt_status status = kvt_store_clear(store, &arguments->filter, NULL);
    if (status == KVT_OK) status = kvt_remote_flush(store, end_ns);
    if (status == KVT_OK) status = kvt_remote_stats_get(store, &stats);
    while (status == KVT_OK && stats.owed_clears != 0 && base_clock_ns() < end_ns) {
        base_sleep(50000000);
        status = kvt_remote_stats_get(store, &stats);
    }
    if (status == KVT_OK && stats.owed_clears != 0) status = KVT_E_TIMEOUT;
    if (status != KVT_OK) {
        char message[COMMAND_MESSAGE_BYTES];
        (void)snprintf(message, sizeof message, "the engine has not taken it%s%s",
                       stats.message[0] != '\0' ? ": " : "", stats.message);
        return command_fail(status, message);
    }
    if (arguments->common.json) return command_print_document(json_pack("{s:b}", "cleared", 1));
    printf("cleared: hosts find no copy from before after a second\n");
    return EXIT_FINE;
}

static int clear_remote(clear_arguments *arguments)
{
    static const char *const sections[] = {"device.*", NULL};
    char message[COMMAND_MESSAGE_BYTES] = "";
    kvt_store_options given = {.struct_size = sizeof given}, options;
    kvt_store *store = NULL;
    void *owner = NULL;
    kvt_status status =
        kvt_store_options_read(arguments->common.config, &given, &owner, message, sizeof message);
    int code = status == KVT_OK ? command_report_unused(&arguments->common, sections)
                                : command_fail_input(status, message);
    if (code == EXIT_FINE && given.remote == NULL)
        code = command_fail(KVT_E_CONFIG, "the configuration has no section remote.NAME, and names "
                                          "no store that is lent");
    if (code == EXIT_FINE) {
        kvt_remote_options remote = *given.remote;
        remote.publish = KVT_PUBLISH_NONE;
        kvt_store_options_init(&options);
        options.policy = "lru";
        options.limits.tick_seconds = 0;
        options.limits.put_staging_bytes = 0;
        options.limits.staging_bytes = CLEAR_ROOM;
        options.tiers[KVT_TIER_DRAM].capacity_bytes = CLEAR_ROOM;
        options.remote = &remote;
        status = kvt_store_open(&options, &store, message, sizeof message);
        code = status == KVT_OK ? clear_copies(arguments, store) : command_fail(status, message);
        kvt_store_close(store);
    }
    kvt_store_options_free(owner);
    return code;
}

static int clear_run(void *context)
{
    clear_arguments *arguments = context;
    if (tools_live_is_named(&arguments->common) && !arguments->copies)
        return clear_entries(arguments);
    if (arguments->yes) return command_misuse("--yes belongs to a lent store: --connect");
    if (arguments->space != NULL && strlen(arguments->space) != LIVE_SPACE_DIGITS)
        return command_misuse("--space: '%.100s' is not 16 hexadecimal digits", arguments->space);
    return clear_remote(arguments);
}

const command_spec clear_spec = {
    .name = "clear",
    .summary = "remove entries of a lent store, or copies for other hosts",
    .about = "Removes the entries of a space, of a tenant, of a tenant in a space, or all, of a "
             "store that kvterrace serve lends, with their copies for other hosts; without --yes "
             "it counts them.\n\n"
             "Where no store is named, or with --copies, it has no host of a configuration's "
             "remote tier find what was published before. That opens no store and needs none: "
             "hosts may be running, or none.",
    .details =
        "A crash before the next kvterrace flush may bring back what lay on SSD.\n\n"
        "With --copies entries that hosts keep themselves stay theirs: clear each host's "
        "(docs/REMOTE.md, Retiring a namespace for new weights). The engine frees the bytes by "
        "its eviction or tier.remote.ttl.\n\n"
        "Exit code 1 also says that leases hold some of it, or that the engine has not taken it "
        "within 10 s: run it again.",
    .example = "  kvterrace clear --connect /run/kvt.sock --space 1f2e --yes\n"
               "  kvterrace clear --config kvterrace.ini --everything",
    .options = clear_rows,
    .argument_bytes = sizeof(clear_arguments),
    .check = clear_check,
    .run = clear_run,
    .settings = SETTINGS_OWN,
};
