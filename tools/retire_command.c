/* SPDX-License-Identifier: Apache-2.0 */
/*
 * retire_command.c - kvterrace flush and retire: what lies on a lent store's devices, and the
 * devices themselves. One thread.
 */
#include "commands.h"
#include "live_store.h"

#include "base/clock.h"
#include "base/config_values.h"

#include <math.h>
#include <string.h>

/* ---- flush ---- */

typedef struct flush_arguments {
    command_common common;
    bool persist;
    command_list seconds; /* at most one */
    double limit_seconds; /* 0: none */
} flush_arguments;

static const command_option flush_rows[] = {
    LIVE_CONNECT_OPTION,
    FLAG_OPTION(flush_arguments, persist, "persist", 0,
                "Also write what lies above SSD alone to SSD, in SECONDS at most"),
    OPERANDS(flush_arguments, seconds, "SECONDS", 0, 1, 0),
    {0},
};

static int flush_check(void *context)
{
    flush_arguments *arguments = context;
    if (arguments->seconds.count == 0) return EXIT_FINE;
    const char *text = arguments->seconds.items[0];
    if (!arguments->persist) return command_misuse("'%.100s': SECONDS belong to --persist", text);
    if (kvt_parse_seconds(text, &arguments->limit_seconds) != KVT_OK ||
        !(arguments->limit_seconds > 0) || arguments->limit_seconds > 1e9)
        return command_misuse("'%.100s' is not a time such as 30 or 5min", text);
    return EXIT_FINE;
}

static json_t *flush_count_json(uint64_t entries, uint64_t bytes)
{
    return json_pack("{s:I, s:I}", "entries", (json_int_t)entries, "bytes", (json_int_t)bytes);
}

static int flush_print(const flush_arguments *arguments, kvt_status status,
                       const kvt_persist_info *info, double seconds)
{
    char text[32];
    const struct {
        const char *name, *text;
        uint64_t entries, bytes;
    } rows[] = {{"written", "written to SSD", info->written, info->written_bytes},
                {"displaced", "made way for them", info->displaced, info->displaced_bytes},
                {"without_room", "worth less than those on SSD, not written", info->without_room,
                 info->without_room_bytes},
                {"left", "left: no time, or a device", info->left, info->left_bytes}};
    if (arguments->common.json) {
        json_t *persisted = arguments->persist ? json_object() : json_null();
        for (size_t i = 0; arguments->persist && i < sizeof rows / sizeof *rows; i++)
            (void)json_object_set_new(persisted, rows[i].name,
                                      flush_count_json(rows[i].entries, rows[i].bytes));
        return command_print_document(
            json_pack("{s:s, s:s, s:f, s:o}", "schema", "kvterrace-flush-1", "status",
                      kvt_status_name(status), "seconds", seconds, "persisted", persisted));
    }
    for (size_t i = 0; arguments->persist && i < sizeof rows / sizeof *rows; i++)
        printf("%10llu entries %10s  %s\n", (unsigned long long)rows[i].entries,
               format_bytes(text, rows[i].bytes), rows[i].text);
    if (status == KVT_OK)
        printf("flushed in %s: what lies on SSD survives a crash\n", format_seconds(text, seconds));
    return EXIT_FINE;
}

static int flush_run(void *context)
{
    const flush_arguments *arguments = context;
    live_store live;
    kvt_persist_info info = {.struct_size = sizeof info};
    int code = tools_live_open(&arguments->common, &live);
    if (code == EXIT_FINE) {
        const uint64_t begin_ns = base_clock_ns();
        const uint64_t deadline_ns = arguments->limit_seconds > 0
                                         ? begin_ns + (uint64_t)(arguments->limit_seconds * 1e9)
                                         : KVT_NO_DEADLINE;
        const kvt_status status = arguments->persist
                                      ? kvt_store_persist(live.store, deadline_ns, &info)
                                      : kvt_store_flush(live.store);
        const bool says = status == KVT_OK || (arguments->persist && status == KVT_E_TIMEOUT);
        if (says)
            code =
                flush_print(arguments, status, &info, (double)(base_clock_ns() - begin_ns) * 1e-9);
        if (code == EXIT_FINE && status != KVT_OK)
            code = tools_live_fail(&live, status, arguments->persist ? "persist" : "flush");
    }
    tools_live_close(&live);
    return code;
}

const command_spec tools_flush_spec = {
    .name = "flush",
    .summary = "make what a lent store has on SSD survive a crash",
    .about = "Has a store that kvterrace serve lends write all puts that have returned, and sync "
             "devices and catalog. With --persist also those entries of HBM and DRAM that have no "
             "record on SSD, the ones worth most first: what closing the store does.",
    .details = "Exit code 1 with figures: the time was over, or a device failed.",
    .synopsis = "[--persist [SECONDS]]",
    .example = "  kvterrace flush --connect /run/kvt.sock --persist 60",
    .options = flush_rows,
    .argument_bytes = sizeof(flush_arguments),
    .check = flush_check,
    .run = flush_run,
    .settings = SETTINGS_OWN,
};

/* ---- retire ---- */

#define RETIRE_STEP_NS UINT64_C(100000000)

typedef struct retire_arguments {
    command_common common;
    bool drain, now, serve, remove, no_wait;
    command_list names; /* one */
} retire_arguments;

static const command_option retire_rows[] = {
    LIVE_CONNECT_OPTION,
    FLAG_OPTION(retire_arguments, drain, "drain", 0,
                "Move its entries to other devices of the tier, and wait; the default"),
    FLAG_OPTION(retire_arguments, now, "now", 0, "Out of service at once: its entries are misses"),
    FLAG_OPTION(retire_arguments, serve, "serve", 0, "End a drain"),
    FLAG_OPTION(retire_arguments, remove, "remove", 0,
                "Close it, when it is drained and empty, or out of service"),
    FLAG_OPTION(retire_arguments, no_wait, "no-wait", 0, "Begin the drain alone"),
    OPERANDS(retire_arguments, names, "DEVICE", 1, 1, 0),
    {0},
};

static int retire_check(void *context)
{
    const retire_arguments *arguments = context;
    if (arguments->drain + arguments->now + arguments->serve + arguments->remove > 1)
        return command_misuse("one of --drain, --now, --serve and --remove");
    if (arguments->no_wait && (arguments->now || arguments->serve || arguments->remove))
        return command_misuse("--no-wait belongs to a drain");
    return EXIT_FINE;
}

static kvt_device_action retire_action(const retire_arguments *arguments)
{
    return arguments->now      ? KVT_DEVICE_RETIRE
           : arguments->serve  ? KVT_DEVICE_SERVE
           : arguments->remove ? KVT_DEVICE_REMOVE
                               : KVT_DEVICE_DRAIN;
}

/* Names the devices that there are. */
static int retire_refuse(const live_store *live, const char *name)
{
    char text[COMMAND_MESSAGE_BYTES];
    kvt_device_stats device = {.struct_size = sizeof device};
    size_t used = (size_t)snprintf(text, sizeof text, "there is no device %.64s; there are", name);
    for (size_t i = 0; kvt_device_stats_get(live->store, i, &device) == KVT_OK; i++)
        if (used + sizeof device.name + 2 < sizeof text)
            used += (size_t)snprintf(text + used, sizeof text - used, "%s %s", i > 0 ? "," : "",
                                     device.name);
    return command_fail(KVT_E_ARGUMENT, text);
}

/* Whether another device of the tier takes what a drain moves. */
static bool retire_has_others(const live_store *live, const kvt_device_stats *from)
{
    kvt_device_stats device = {.struct_size = sizeof device};
    bool has = false;
    for (size_t i = 0; kvt_device_stats_get(live->store, i, &device) == KVT_OK; i++)
        has |= device.tier == from->tier && device.state == KVT_DEVICE_SERVING &&
               strcmp(device.name, from->name) != 0;
    return has;
}

static void retire_say(const retire_arguments *arguments, const kvt_device_stats *device)
{
    char used[32], capacity[32];
    const char *tier = kvt_tier_name((int)device->tier);
    if (arguments->common.json) return;
    printf("%s: %s, %s, %s of %s used\n", device->name, tier != NULL ? tier : "?",
           tools_live_device_state(device->state), format_bytes(used, device->used_bytes),
           format_bytes(capacity, device->facts.capacity_bytes));
    (void)fflush(stdout);
}

/* Waits until nothing lies on the device. */
static int retire_wait(const retire_arguments *arguments, const live_store *live,
                       kvt_device_stats *device)
{
    command_progress progress;
    const char *name = arguments->names.items[0];
    const double first = fmax(1, (double)device->used_bytes);
    kvt_status status = KVT_OK;
    progress_start(&progress, &arguments->common);
    while (status == KVT_OK && device->state == KVT_DEVICE_DRAINING && device->used_bytes > 0) {
        char left[32];
        if (!progress_ask(&progress, 1 - (double)device->used_bytes / first,
                          format_bytes(left, device->used_bytes)))
            status = KVT_E_CANCELLED;
        base_sleep(RETIRE_STEP_NS);
        if (status == KVT_OK) status = tools_live_device(live, name, device);
    }
    progress_end(&progress);
    if (status == KVT_E_CANCELLED)
        command_note(&arguments->common, "the drain goes on; retire --serve %s ends it", name);
    if (status == KVT_OK && device->state != KVT_DEVICE_DRAINING) {
        char text[128];
        (void)snprintf(text, sizeof text, "%s is %s now: somebody else has changed it",
                       device->name, tools_live_device_state(device->state));
        return command_fail(KVT_E_STATE, text);
    }
    return status == KVT_OK ? EXIT_FINE : tools_live_fail(live, status, name);
}

/* Says what was done. */
static int retire_print(const retire_arguments *arguments, uint64_t before,
                        const kvt_device_stats *device)
{
    static const char *const actions[] = {"?", "drain", "serve", "retire", "remove"};
    const kvt_device_action action = retire_action(arguments);
    const char *tier = kvt_tier_name((int)device->tier);
    if (arguments->common.json)
        return command_print_document(json_pack(
            "{s:s, s:s, s:s, s:s, s:s, s:I, s:I, s:I}", "schema", "kvterrace-retire-1", "device",
            device->name, "tier", tier != NULL ? tier : "?", "action", actions[action], "state",
            tools_live_device_state(device->state), "used_bytes_before", (json_int_t)before,
            "used_bytes", (json_int_t)device->used_bytes, "capacity_bytes",
            (json_int_t)device->facts.capacity_bytes));
    if (action == KVT_DEVICE_DRAIN && device->used_bytes == 0)
        printf("%s: empty; retire --remove takes it out\n", device->name);
    else
        retire_say(arguments, device);
    return EXIT_FINE;
}

static int retire_device(const retire_arguments *arguments, const live_store *live)
{
    const char *name = arguments->names.items[0];
    const kvt_device_action action = retire_action(arguments);
    kvt_device_stats device;
    kvt_status status = tools_live_device(live, name, &device);
    if (status == KVT_END) return retire_refuse(live, name);
    if (status != KVT_OK) return tools_live_fail(live, status, name);
    const uint64_t before = device.used_bytes;
    retire_say(arguments, &device);
    if (action == KVT_DEVICE_DRAIN && before > 0 && !retire_has_others(live, &device))
        command_note(&arguments->common,
                     "no other device of the tier serves: entries that find no room elsewhere are "
                     "dropped");
    status = kvt_device_change(live->store, name, action);
    if (status == KVT_E_STATE) return tools_live_fail(live, status, "it is out of service");
    if (status == KVT_BUSY)
        return tools_live_fail(live, status,
                               "something lies there, or it has not answered: drain it");
    kvt_device_stats now;
    if (status == KVT_OK) status = tools_live_device(live, name, &now);
    if (status == KVT_OK) device = now;
    if (status == KVT_END && action == KVT_DEVICE_REMOVE) {
        /* It has no place any more. */
        device.state = KVT_DEVICE_ABSENT;
        device.used_bytes = 0;
        status = KVT_OK;
    }
    if (status != KVT_OK) return tools_live_fail(live, status, name);
    int code = EXIT_FINE;
    if (action == KVT_DEVICE_DRAIN && !arguments->no_wait)
        code = retire_wait(arguments, live, &device);
    return code == EXIT_FINE ? retire_print(arguments, before, &device) : code;
}

static int retire_run(void *context)
{
    const retire_arguments *arguments = context;
    live_store live;
    int code = tools_live_open(&arguments->common, &live);
    tools_live_catch_interrupts();
    if (code == EXIT_FINE) code = retire_device(arguments, &live);
    tools_live_close(&live);
    return code;
}

const command_spec tools_retire_spec = {
    .name = "retire",
    .summary = "drain, retire, serve or remove a device of a lent store",
    .about = "Changes what a device is for, of a store that kvterrace serve lends: says what lies "
             "there, drains it to other devices of its tier, and waits until it is empty. The "
             "store goes on serving.",
    .details = "A drain moves within store.move_rate. Interrupted, the command leaves the drain "
               "running. kvt_device_add brings a device back (docs/TIERS.md, Drain, retire, add).",
    .example = "  kvterrace retire nvme1 --config kvt.ini\n"
               "  kvterrace retire nvme1 --config kvt.ini --remove",
    .options = retire_rows,
    .argument_bytes = sizeof(retire_arguments),
    .check = retire_check,
    .run = retire_run,
    .settings = SETTINGS_OWN,
};
