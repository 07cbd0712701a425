/* SPDX-License-Identifier: Apache-2.0 */
/*
 * inspect_watch.c - a running store's file as a document and as tables. Figures count from the
 * store's open. One thread.
 */
#include "inspect_watch.h"

#include "base/clock.h"
#include "tools/inspect/watch_read.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define WATCH_SHOWN 20u /* operations, unless all are asked for */

/* ---- the document ---- */

typedef struct watch_document {
    json_t *root;
    json_t *metrics;
    json_t *operations;
} watch_document;

/* Labels may hold any bytes, a JSON text only UTF-8. */
static json_t *watch_text(const char *text)
{
    json_t *value = json_string(text);
    return value != NULL ? value : json_string("(not UTF-8)");
}

static bool watch_take_head(void *context, const watch_read_field *fields, size_t count)
{
    const watch_document *document = context;
    for (size_t i = 0; i < count; i++) {
        char name[32];
        (void)snprintf(name, sizeof name, "%.20s_ns", fields[i].name);
        if (json_object_set_new(document->root, name,
                                json_integer(strtoll(fields[i].value, NULL, 10))) != 0)
            return false;
    }
    return true;
}

static bool watch_take_sample(void *context, const char *name, const watch_read_field *labels,
                              size_t count, double value)
{
    static const char prefix[] = "kvterrace_";
    const watch_document *document = context;
    if (strncmp(name, prefix, sizeof prefix - 1) == 0) name += sizeof prefix - 1;
    /* JSON has no infinity and no NaN. */
    json_t *number = isfinite(value) ? json_real(value) : json_null();
    if (value >= 0 && value < 9e15 && value == floor(value)) {
        json_decref(number);
        number = json_integer((json_int_t)value);
    }
    json_t *row = json_pack("{s:o, s:o}", "name", watch_text(name), "value", number);
    for (size_t i = 0; row != NULL && i < count; i++)
        (void)json_object_set_new(row, labels[i].name, watch_text(labels[i].value));
    return json_array_append_new(document->metrics, row) == 0;
}

static bool watch_take_operation(void *context, const watch_read_field *fields, size_t count)
{
    static const char *const texts[] = {"kind", "tier", "status", "form", "key"};
    const watch_document *document = context;
    json_t *row = json_object();
    for (size_t i = 0; i < count; i++) {
        bool is_text = false;
        for (size_t j = 0; j < sizeof texts / sizeof texts[0]; j++)
            is_text |= strcmp(fields[i].name, texts[j]) == 0;
        (void)json_object_set_new(row, fields[i].name,
                                  is_text ? watch_text(fields[i].value)
                                          : json_integer(strtoll(fields[i].value, NULL, 10)));
    }
    return json_array_append_new(document->operations, row) == 0;
}

kvt_status inspect_watch_read(const char *path, json_t **document_out, char *message,
                              size_t message_size)
{
    watch_document document = {
        .root = json_pack("{s:s}", "kind", "watch"),
        .metrics = json_array(),
        .operations = json_array(),
    };
    const watch_read_visitor visitor = {.context = &document,
                                        .head = watch_take_head,
                                        .sample = watch_take_sample,
                                        .operation = watch_take_operation};
    const kvt_status status = watch_read(path, &visitor, message, message_size);
    (void)json_object_set_new(document.root, "metrics", document.metrics);
    (void)json_object_set_new(document.root, "operations", document.operations);
    *document_out = status == KVT_OK ? document.root : NULL;
    if (status != KVT_OK) json_decref(document.root);
    return status;
}

/* ---- the tables ---- */

/* The sum of a name's samples with a label's value; label NULL: of all. */
static double watch_sum(const json_t *document, const char *name, const char *label,
                        const char *value)
{
    const json_t *metrics = json_object_get(document, "metrics");
    double sum = 0;
    for (size_t i = 0; i < json_array_size(metrics); i++) {
        const json_t *row = json_array_get(metrics, i);
        const char *found = json_string_value(json_object_get(row, "name"));
        if (found == NULL || strcmp(found, name) != 0) continue;
        const char *of = label != NULL ? json_string_value(json_object_get(row, label)) : NULL;
        if (label == NULL || (of != NULL && strcmp(of, value) == 0))
            sum += json_number_value(json_object_get(row, "value"));
    }
    return sum;
}

static unsigned long long watch_count(const json_t *document, const char *name, const char *label,
                                      const char *value)
{
    const double sum = watch_sum(document, name, label, value);
    return sum >= 0 && sum < 1e19 ? (unsigned long long)sum : 0;
}

/* So many bytes, as a person reads them. */
static const char *watch_bytes(char text[32], const json_t *document, const char *name,
                               const char *label, const char *value)
{
    return format_bytes(text, watch_count(document, name, label, value));
}

/* The bound of the bucket of get_seconds in which a share of the gets ends; 0 without any. */
static double watch_get_seconds(const json_t *document, double share)
{
    const json_t *metrics = json_object_get(document, "metrics");
    const double all = watch_sum(document, "get_seconds_count", NULL, NULL);
    for (size_t i = 0; all > 0 && i < json_array_size(metrics); i++) {
        const json_t *row = json_array_get(metrics, i);
        const char *name = json_string_value(json_object_get(row, "name"));
        const char *bound = json_string_value(json_object_get(row, "le"));
        if (name == NULL || bound == NULL || strcmp(name, "get_seconds_bucket") != 0) continue;
        if (json_number_value(json_object_get(row, "value")) >= share * all)
            return strtod(bound, NULL);
    }
    return 0;
}

/* The value of a label of a sample that has a name; NULL for any other sample. */
static const char *watch_label_of(const json_t *row, const char *name, const char *label)
{
    const char *found = json_string_value(json_object_get(row, "name"));
    if (found == NULL || strcmp(found, name) != 0) return NULL;
    return json_string_value(json_object_get(row, label));
}

/* "policy 3, backlog 1": what one family counts by one label, summed over its other labels, zeros
 * left out; "none". */
static void watch_print_parts(const json_t *document, const char *name, const char *label)
{
    const json_t *metrics = json_object_get(document, "metrics");
    bool any = false;
    for (size_t i = 0; i < json_array_size(metrics); i++) {
        const char *of = watch_label_of(json_array_get(metrics, i), name, label);
        bool first = of != NULL;
        for (size_t before = 0; first && before < i; before++) {
            const char *same = watch_label_of(json_array_get(metrics, before), name, label);
            first = same == NULL || strcmp(same, of) != 0;
        }
        const double value = first ? watch_sum(document, name, label, of) : 0;
        if (!(value > 0)) continue;
        printf("%s%s %.0f", any ? ", " : "", of, value);
        any = true;
    }
    printf("%s\n", any ? "" : "none");
}

static void watch_print_calls(const json_t *document)
{
    char p50[32], p99[32];
    printf("gets       %llu, hits %llu within %s (p50) and %s (p99), misses: ",
           watch_count(document, "gets_total", NULL, NULL),
           watch_count(document, "hits_total", NULL, NULL),
           format_seconds(p50, watch_get_seconds(document, 0.5)),
           format_seconds(p99, watch_get_seconds(document, 0.99)));
    watch_print_parts(document, "misses_total", "reason");
    printf("hit as     ");
    watch_print_parts(document, "hits_total", "form");
    printf("puts       %llu, stored already %llu, waiting %llu, lost %llu, refused: ",
           watch_count(document, "puts_total", NULL, NULL),
           watch_count(document, "puts_existing_total", NULL, NULL),
           watch_count(document, "puts_waiting", NULL, NULL),
           watch_count(document, "puts_lost_total", NULL, NULL));
    watch_print_parts(document, "put_refusals_total", "reason");
    printf("decisions  %llu\n", watch_count(document, "decision_seconds_count", NULL, NULL));
    static const char *const kinds[] = {"put", "promotion", "demotion", "recode", "eviction"};
    printf("moves      ");
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        printf("%s%s %llu", i != 0 ? ", " : "", kinds[i],
               watch_count(document, "moves_total", "kind", kinds[i]));
    printf("; aborted %llu\n", watch_count(document, "moves_total", "outcome", "aborted"));
    printf("failures   loads %llu, checksums %llu, copies stood in %llu\n",
           watch_count(document, "load_failures_total", NULL, NULL),
           watch_count(document, "checksum_failures_total", NULL, NULL),
           watch_count(document, "copy_fallbacks_total", NULL, NULL));
}

static void watch_print_tiers(const json_t *document)
{
    printf("\n%-6s %10s %12s %12s %10s %12s %12s %12s\n", "tier", "entries", "used", "capacity",
           "hits", "tokens", "read", "written");
    for (int tier = KVT_TIER_NONE + 1; kvt_tier_name(tier) != NULL; tier++) {
        const char *name = kvt_tier_name(tier);
        char used[32], capacity[32], read[32], written[32];
        if (watch_count(document, "capacity_bytes", "tier", name) == 0) continue;
        printf("%-6s %10llu %12s %12s %10llu %12llu %12s %12s\n", name,
               watch_count(document, "entries", "tier", name),
               watch_bytes(used, document, "used_bytes", "tier", name),
               watch_bytes(capacity, document, "capacity_bytes", "tier", name),
               watch_count(document, "hits_total", "tier", name),
               watch_count(document, "hit_tokens_total", "tier", name),
               watch_bytes(read, document, "read_bytes_total", "tier", name),
               watch_bytes(written, document, "written_bytes_total", "tier", name));
    }
}

static void watch_print_devices(const json_t *document)
{
    const json_t *metrics = json_object_get(document, "metrics");
    printf("\n%-20s %-6s %-4s %12s %12s %12s %12s %9s\n", "device", "tier", "up", "used", "read",
           "written", "pending", "depth");
    for (size_t i = 0; i < json_array_size(metrics); i++) {
        const json_t *row = json_array_get(metrics, i);
        const char *name = json_string_value(json_object_get(row, "name"));
        const char *device = json_string_value(json_object_get(row, "device"));
        const char *tier = json_string_value(json_object_get(row, "tier"));
        char used[32], read[32], written[32], pending[32], depth[48];
        if (name == NULL || device == NULL || tier == NULL || strcmp(name, "device_up") != 0)
            continue;
        (void)snprintf(depth, sizeof depth, "%llu/%llu",
                       watch_count(document, "device_depth_achieved", "device", device),
                       watch_count(document, "device_depth_max", "device", device));
        printf("%-20s %-6s %-4s %12s %12s %12s %12s %9s\n", device, tier,
               json_number_value(json_object_get(row, "value")) > 0 ? "yes" : "no",
               watch_bytes(used, document, "device_used_bytes", "device", device),
               watch_bytes(read, document, "device_read_bytes_total", "device", device),
               watch_bytes(written, document, "device_written_bytes_total", "device", device),
               watch_bytes(pending, document, "device_pending_bytes", "device", device), depth);
    }
}

static const char *watch_member(const json_t *row, const char *name)
{
    const char *text = json_string_value(json_object_get(row, name));
    return text != NULL ? text : "?";
}

/* A status for a person: KVT_E_CORRUPT is "corrupt". */
static const char *watch_outcome(char text[32], const json_t *row)
{
    const char *name = watch_member(row, "status");
    if (strncmp(name, "KVT_", 4) == 0) name += 4;
    if (strncmp(name, "E_", 2) == 0) name += 2;
    size_t length = 0;
    for (; name[length] != '\0' && length < 31; length++)
        text[length] = (char)tolower((unsigned char)name[length]);
    text[length] = '\0';
    return text;
}

static double watch_member_seconds(const json_t *row, const char *name)
{
    return json_number_value(json_object_get(row, name)) * 1e-9;
}

static void watch_print_operations(const json_t *document, bool all)
{
    const json_t *operations = json_object_get(document, "operations");
    const size_t count = json_array_size(operations);
    const double clock_s = watch_member_seconds(document, "clock_ns");
    printf("\n%-10s %-7s %-5s %-12s %10s %10s %10s %10s %10s %-10s %s\n", "before", "kind", "tier",
           "form", "bytes", "elapsed", "decide", "transfer", "code", "status", "key");
    for (size_t i = all || count < WATCH_SHOWN ? 0 : count - WATCH_SHOWN; i < count; i++) {
        const json_t *row = json_array_get(operations, i);
        char texts[7][32];
        printf("%-10s %-7s %-5s %-12s %10s %10s %10s %10s %10s %-10s %s\n",
               format_seconds(texts[0], fmax(0, clock_s - watch_member_seconds(row, "instant"))),
               watch_member(row, "kind"), watch_member(row, "tier"), watch_member(row, "form"),
               format_bytes(texts[1],
                            (uint64_t)fmax(0, json_number_value(json_object_get(row, "bytes")))),
               format_seconds(texts[2], watch_member_seconds(row, "elapsed")),
               format_seconds(texts[3], watch_member_seconds(row, "decide")),
               format_seconds(texts[4], watch_member_seconds(row, "transfer")),
               format_seconds(texts[5], watch_member_seconds(row, "code")),
               watch_outcome(texts[6], row), watch_member(row, "key"));
    }
    if (!all && count > WATCH_SHOWN)
        printf("the last %u of %zu operations; --entries shows all\n", WATCH_SHOWN, count);
}

void inspect_watch_print(const json_t *document, bool all)
{
    char ago[32], open[32];
    const double written_s = watch_member_seconds(document, "written_ns");
    printf("written %s ago, %s after the store was opened\n",
           format_seconds(ago, fmax(0, (double)base_calendar_ns() * 1e-9 - written_s)),
           format_seconds(open, watch_sum(document, "open_seconds", NULL, NULL)));
    watch_print_calls(document);
    watch_print_tiers(document);
    watch_print_devices(document);
    watch_print_operations(document, all);
}
