/* SPDX-License-Identifier: Apache-2.0 */
/*
 * clear_command.c - kvterrace clear: copies for other hosts stop counting. It is a clear of a store
 * that keeps nothing itself, over the engine of a configuration. One thread.
 */
#include "commands.h"

#include "base/clock.h"

#include <kvterrace/names.h>
#include <kvterrace/remote.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define CLEAR_ROOM    (UINT64_C(1) << 20) /* bytes of memory that a store asks for */
#define CLEAR_WAIT_NS UINT64_C(10000000000)

typedef struct clear_arguments {
    command_common common;
    const char *space;
    const char *tenant;
    bool everything;
    kvt_clear_filter filter;
} clear_arguments;

static const command_option clear_rows[] = {
    TEXT_OPTION(clear_arguments, space, "space", 0, "HEX",
                "Copies of a space: the first 16 digits of its keys"),
    TEXT_OPTION(clear_arguments, tenant, "tenant", 0, "N", "Copies of a tenant"),
    FLAG_OPTION(clear_arguments, everything, "everything", 0, "All copies of the namespace"),
    {0},
};

/* Reads all of a text as a number up to a bound. */
static bool clear_read(const char *text, int base, uint64_t most, uint64_t *out)
{
    char *end = NULL;
    errno = 0;
    *out = strtoull(text, &end, base);
    return errno == 0 && end != text && *end == '\0' && *out <= most &&
           strspn(text, "0123456789abcdefABCDEF") == strlen(text);
}

static int clear_check(void *context)
{
    clear_arguments *arguments = context;
    uint64_t tenant = 0;
    kvt_clear_filter *filter = &arguments->filter;
    *filter = (kvt_clear_filter){.struct_size = sizeof *filter,
                                 .by_space = arguments->space != NULL,
                                 .by_tenant = arguments->tenant != NULL,
                                 .everything = arguments->everything};
    if (filter->by_space + filter->by_tenant + filter->everything != 1)
        return command_misuse(
            "exactly one of --space, --tenant and --everything says what to clear");
    if (filter->by_space && (strlen(arguments->space) != 16 ||
                             !clear_read(arguments->space, 16, UINT64_MAX, &filter->space)))
        return command_misuse("--space: '%s' is not 16 hexadecimal digits", arguments->space);
    if (filter->by_tenant && !clear_read(arguments->tenant, 10, KVT_TENANTS_MAX - 1, &tenant))
        return command_misuse("--tenant: '%s' is not from 0 to %u", arguments->tenant,
                              KVT_TENANTS_MAX - 1);
    filter->tenant = (uint32_t)tenant;
    return EXIT_FINE;
}

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

static int clear_run(void *context)
{
    static const char *const sections[] = {"device.*", NULL};
    const clear_arguments *arguments = context;
    char message[COMMAND_MESSAGE_BYTES] = "";
    kvt_store_options given = {.struct_size = sizeof given}, options;
    kvt_store *store = NULL;
    void *owner = NULL;
    kvt_status status =
        kvt_store_options_read(arguments->common.config, &given, &owner, message, sizeof message);
    int code = status == KVT_OK ? command_report_unused(&arguments->common, sections)
                                : command_fail_input(status, message);
    if (code == EXIT_FINE && given.remote == NULL)
        code = command_fail(KVT_E_CONFIG, "the configuration has no section remote.NAME");
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

const command_spec clear_spec = {
    .name = "clear",
    .summary = "make other hosts' copies of a space or of all count no more",
    .about = "Has no host of a configuration's remote tier find what was published before: the "
             "copies of a space, of a tenant, or all of the namespace. Opens no store and needs "
             "none: hosts may be running, or none.",
    .details =
        "Entries that hosts keep themselves stay theirs: clear those with kvt_store_clear on each "
        "host (docs/REMOTE.md, Retiring a namespace for new weights). The engine frees the "
        "bytes by its eviction or tier.remote.ttl.\n\n"
        "Exit code 1 also says that the engine has not taken it within 10 s: run it again.",
    .example = "  kvterrace clear --config kvterrace.ini --everything",
    .options = clear_rows,
    .argument_bytes = sizeof(clear_arguments),
    .check = clear_check,
    .run = clear_run,
    .settings = SETTINGS_OWN,
};
