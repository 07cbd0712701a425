/* SPDX-License-Identifier: Apache-2.0 */
/*
 * profile_print.c - kvterrace profile show, and a profile's document as text. The terminal gets the
 * best instruction set and the figures that decisions are made on; the JSON document and the page
 * have the rest. One thread.
 */
#include "profile_document.h"
#include "tools/command/command.h"

#include <math.h>
#include <string.h>

static void print_head(const json_t *document)
{
    const json_t *runs = json_object_get(document, "runs");
    const size_t count = json_array_size(runs);
    const json_t *last = count > 0 ? json_array_get(runs, count - 1) : NULL;
    if (last == NULL) {
        printf("%s: nothing measured yet\n", view_text(document, "database"));
        return;
    }
    printf("%s: %zu run%s, the last one on %s (%s, %.0f CPUs) %s%s\n",
           view_text(document, "database"), count, count == 1 ? "" : "s",
           view_text(last, "host_name"), view_text(last, "cpu_model"),
           view_number(last, "cpu_count", 0), view_text(last, "started_utc"),
           view_number(last, "complete", 0) > 0 ? "" : ", interrupted");
}

/* ---- devices ---- */

static void print_direction(const json_t *device, const char *key)
{
    char rate[32] = "-", wait[32] = "-", residual[32] = "-";
    kvt_affine affine;
    if (view_affine(device, key, &affine)) {
        format_rate(rate, affine.bytes_per_s);
        format_seconds(wait, affine.request_seconds);
        (void)snprintf(residual, sizeof residual, "%.0f %%", affine.residual * 100);
    }
    printf(" %11s %9s %6s", rate, wait, residual);
}

/* The worst of the mixtures: what is left of the bandwidth that the two directions would have. */
static void print_mixed(const json_t *device)
{
    const json_t *mixed;
    size_t i;
    double least = INFINITY;
    json_array_foreach(json_object_get(device, "mixed"), i, mixed)
    {
        double unmixed = view_number(mixed, "unmixed_bytes_per_s", 0);
        if (unmixed > 0) least = fmin(least, view_number(mixed, "bytes_per_s", 0) / unmixed);
    }
    char text[32] = "-";
    if (isfinite(least)) (void)snprintf(text, sizeof text, "%.0f %%", least * 100);
    printf(" %6s", text);
}

static void print_devices(const json_t *document)
{
    const json_t *devices = json_object_get(document, "devices"), *device;
    size_t i;
    if (json_array_size(devices) == 0) return;
    printf("\n%-14s %-5s %-17s %11s %9s %6s %11s %9s %6s %6s\n", "device", "tier", "engine", "read",
           "+ each", "off by", "write", "+ each", "off by", "mixed");
    json_array_foreach(devices, i, device)
    {
        printf("%-14s %-5s %-17s", view_text(device, "device"), view_text(device, "tier"),
               view_text(device, "engine"));
        print_direction(device, "read");
        print_direction(device, "write");
        print_mixed(device);
        printf("%s%s%s\n", json_is_true(json_object_get(device, "direct")) ? "  direct" : "",
               json_is_true(json_object_get(device, "emulated")) ? "  emulated" : "",
               json_is_true(json_object_get(device, "imported")) ? "  imported" : "");
    }
}

/* A machine that does other work as well measures that work too. */
static void print_busy(const json_t *document)
{
    const json_t *device;
    size_t i, count = 0;
    double repeat = 0, fit = 0;
    json_array_foreach(json_object_get(document, "devices"), i, device)
    {
        if (!json_is_true(json_object_get(device, "busy"))) continue;
        repeat = fmax(repeat, view_number(device, "repeat_error", 0));
        fit = fmax(fit, view_number(json_object_get(device, "read"), "residual", 0));
        fit = fmax(fit, view_number(json_object_get(device, "write"), "residual", 0));
        printf(count++ == 0 ? "\nwarning: this machine was busy while it was measured: %s" : ", %s",
               view_text(device, "device"));
    }
    if (count == 0) return;
    printf(
        ".\n         Repetitions differ by up to %.0f %% (median over the points), and the model "
        "is off by up to %.0f %%;\n         above 50 %% and 100 %% figures are too uncertain to "
        "compare anything by. Measure again when the machine is quiet.\n",
        repeat * 100, fit * 100);
}

/* By how much the model is off at each request size, at depth 1. */
static void print_fits(const json_t *document)
{
    const json_t *device, *point;
    size_t i, j;
    bool headed = false;
    json_array_foreach(json_object_get(document, "devices"), i, device)
    {
        bool begun = false;
        json_array_foreach(json_object_get(device, "points"), j, point)
        {
            char size[32];
            if (strcmp(view_text(point, "kind"), "read") != 0 ||
                !json_is_number(json_object_get(point, "fit_error"))) {
                continue;
            }
            if (!headed) printf("\nread at depth 1, model against measured\n");
            if (!begun) printf("%-14s", view_text(device, "device"));
            headed = begun = true;
            printf("  %s %+.0f %%",
                   format_bytes(size, (uint64_t)view_number(point, "request_bytes", 0)),
                   view_number(point, "fit_error", 0) * 100);
        }
        if (begun) printf("\n");
    }
}

static void print_seconds(const json_t *row, const char *name)
{
    const json_t *value;
    size_t i;
    printf("%-22s", name);
    json_array_foreach(json_object_get(row, "seconds"), i, value)
    {
        char text[32];
        printf(" %9s", format_seconds(text, json_number_value(value)));
    }
    printf("\n");
}

static void print_loads(const json_t *document)
{
    const json_t *table, *row;
    size_t i, j;
    if (json_array_size(json_object_get(document, "devices")) == 0) return;
    json_array_foreach(json_object_get(document, "load"), i, table)
    {
        char size[32];
        printf("\nloading and computing a context, %s a token\n%-22s",
               format_bytes(size, (uint64_t)view_number(table, "token_bytes", 0)), "tokens");
        json_array_foreach(json_object_get(table, "tokens"), j, row)
        {
            printf(" %9.0f", json_number_value(row));
        }
        printf("\n");
        json_array_foreach(json_object_get(table, "loads"), j, row)
        {
            print_seconds(row, view_text(row, "device"));
        }
        json_array_foreach(json_object_get(table, "prefills"), j, row)
        {
            print_seconds(row, view_text(row, "prefill"));
        }
    }
}

/* "always", "never", "12345". */
static const char *print_tokens(const json_t *row, char text[32])
{
    const char *wins = view_text(row, "loading_wins");
    if (strcmp(wins, "from") != 0) return wins;
    (void)snprintf(text, 32, "%.0f", ceil(view_number(row, "tokens", 0)));
    return text;
}

static void print_break_even(const json_t *document)
{
    const json_t *rows = json_object_get(json_object_get(document, "break_even"), "devices"), *row;
    const char *device = "", *prefill = "";
    size_t i;
    json_array_foreach(rows, i, row)
    {
        char text[32], column[48];
        if (i == 0) {
            printf("\nloading beats recomputing from so many tokens on (%.0f thread%s decode%s)\n"
                   "%-22s %-20s",
                   view_number(row, "threads", 1), view_number(row, "threads", 1) > 1 ? "s" : "",
                   view_number(row, "threads", 1) > 1 ? "" : "s", "device", "prefill");
            const char *first = view_text(row, "device");
            const char *with = view_text(row, "prefill");
            const json_t *head;
            size_t j;
            json_array_foreach(rows, j, head)
            {
                if (strcmp(view_text(head, "device"), first) != 0 ||
                    strcmp(view_text(head, "prefill"), with) != 0) {
                    break;
                }
                (void)snprintf(column, sizeof column, "%s", view_text(head, "codec"));
                column[strcspn(column, ",")] = '\0';
                printf(" %13s", column);
            }
        }
        if (strcmp(device, view_text(row, "device")) != 0 ||
            strcmp(prefill, view_text(row, "prefill")) != 0) {
            device = view_text(row, "device");
            prefill = view_text(row, "prefill");
            printf("\n%-22s %-20s", device, prefill);
        }
        printf(" %13s", print_tokens(row, text));
    }
    if (json_array_size(rows) > 0) printf("\n");
}

/* ---- codecs ---- */

/* The break-even row of a form on so many threads. */
static const json_t *print_find(const json_t *document, const json_t *like, double threads)
{
    const json_t *row;
    size_t i;
    json_array_foreach(json_object_get(json_object_get(document, "break_even"), "codecs"), i, row)
    {
        if (json_equal(json_object_get(row, "source"), json_object_get(like, "source")) &&
            strcmp(view_text(row, "codec"), view_text(like, "name")) == 0 &&
            view_number(row, "threads", 0) == threads) {
            return row;
        }
    }
    return NULL;
}

static const char *print_pays(const json_t *row, char text[32])
{
    const char *pays = view_text(row, "pays");
    if (row == NULL) return "-";
    if (strcmp(pays, "below") != 0) return pays;
    return format_rate(text, view_number(row, "bytes_per_s", 0));
}

static void print_codecs(const json_t *document)
{
    const json_t *codec;
    const char *source = "";
    double threads = 0;
    size_t i;
    json_array_foreach(json_object_get(document, "codecs"), i, codec)
    {
        char encode[32], decode[32], pays[32];
        if (!json_is_true(json_object_get(codec, "best"))) continue;
        if (strcmp(source, view_text(codec, "source")) != 0 ||
            threads != view_number(codec, "threads", 0)) {
            source = view_text(codec, "source");
            threads = view_number(codec, "threads", 0);
            printf("\n%s%s, %s, %.0f thread%s\n%-36s %7s %11s %11s %12s\n",
                   view_number(codec, "imported", 0) > 0 ? view_text(codec, "import_source")
                   : strcmp(source, "sample") == 0       ? "generated"
                                                         : source,
                   view_number(codec, "imported", 0) > 0 ? "" : " KV", view_text(codec, "isa"),
                   threads, threads > 1 ? "s" : "", "codec", "stored", "encode", "decode",
                   "pays below");
        }
        printf("%-36s %6.1f%% %11s %11s %12s\n", view_text(codec, "name"),
               view_number(codec, "stored_share", 0) * 100,
               format_rate(encode, view_number(codec, "encode_bytes_per_s", 0)),
               format_rate(decode, view_number(codec, "decode_bytes_per_s", 0)),
               print_pays(print_find(document, codec, threads), pays));
    }
}

/* ---- quality ---- */

/* Right-aligned in `width`, "-" when it was not measured. */
static void print_measure(const json_t *row, const char *key, int width, const char *format)
{
    char text[32] = "-";
    double value = view_number(row, key, NAN);
    if (isfinite(value))
        (void)snprintf(text, sizeof text, format[0] == 'e' ? "%.2e" : "%.5f", value);
    printf(" %*s", width, text);
}

static void print_quality(const json_t *document)
{
    const json_t *set, *curve;
    size_t i, j;
    json_array_foreach(json_object_get(document, "quality_sets"), i, set)
    {
        printf("\nquality of %s on %s (%s)", view_text(set, "model"), view_text(set, "class"),
               view_text(set, "method"));
        if (view_number(set, "entries", 0) > 0) {
            printf(", %.0f entries", view_number(set, "entries", 0));
        }
        printf("%s\n%-36s %6s %8s %8s %8s %8s %9s %8s\n",
               view_number(set, "complete", 0) > 0 ? "" : ", interrupted", "variant", "bits",
               "loss", "low", "high", "p90", "KL nat", "top-1");
        json_array_foreach(json_object_get(set, "curves"), j, curve)
        {
            printf("%-36s %6.2f", view_text(curve, "name"),
                   view_number(curve, "bits_per_element", 0));
            print_measure(curve, "loss_mean", 8, "f");
            print_measure(curve, "loss_low", 8, "f");
            print_measure(curve, "loss_high", 8, "f");
            print_measure(curve, "loss_p90", 8, "f");
            print_measure(curve, "kl", 9, "e");
            print_measure(curve, "top1", 8, "f");
            printf("%s%s\n", view_text(curve, "source")[0] ? "  " : "", view_text(curve, "source"));
        }
    }
}

static void print_calibrations(const json_t *document)
{
    const json_t *calibration, *row;
    size_t i, j;
    json_array_foreach(json_object_get(document, "calibrations"), i, calibration)
    {
        printf("\nladder of %s on %s\n%-36s %6s %8s %8s\n", view_text(calibration, "model"),
               view_text(calibration, "class"), "variant", "bits", "loss", "at most");
        json_array_foreach(json_object_get(calibration, "rungs"), j, row)
        {
            printf("%-36s %6.2f", view_text(row, "name"), view_number(row, "bits_per_element", 0));
            print_measure(row, "loss", 8, "f");
            print_measure(row, "loss_upper", 8, "f");
            printf("  %s%s\n", view_number(row, "accepted", 0) > 0 ? "" : "refused: ",
                   view_text(row, "evidence"));
        }
        json_array_foreach(json_object_get(calibration, "choices"), j, row)
        {
            printf("  %s: %s - %s\n", view_text(row, "question"), view_text(row, "chosen"),
                   view_text(row, "evidence"));
        }
    }
}

static void print_learned(const json_t *document)
{
    const json_t *rows = json_object_get(document, "learned"), *row;
    size_t i;
    if (json_array_size(rows) == 0) return;
    printf("\n%-8s %-24s %-10s %10s %9s %9s %9s\n", "learned", "of", "part", "value", "seen",
           "error p50", "p90");
    json_array_foreach(rows, i, row)
    {
        char p50[32] = "-", p90[32] = "-";
        double error = view_number(row, "error_p50", NAN);
        if (isfinite(error)) (void)snprintf(p50, sizeof p50, "%.1f %%", error * 100);
        error = view_number(row, "error_p90", NAN);
        if (isfinite(error)) (void)snprintf(p90, sizeof p90, "%.1f %%", error * 100);
        printf("%-8s %-24s %-10s %10.4g %9.0f %9s %9s\n", view_text(row, "kind"),
               view_text(row, "name"), view_text(row, "part"), view_number(row, "value", 0),
               view_number(row, "observations", 0), p50, p90);
    }
}

static void print_bases(const json_t *document)
{
    static const char *const spans[] = {"?", "head", "layer", "layers4"};
    const json_t *rows = json_object_get(document, "bases"), *row;
    size_t i;
    if (json_array_size(rows) == 0) return;
    printf("\n%-8s %-24s %-8s %10s %12s\n", "basis", "model", "span", "MB", "tokens");
    json_array_foreach(rows, i, row)
    {
        const double span = view_number(row, "span", 0);
        printf("%-8.5s %-24s %-8s %10.2f %12.0f\n", view_text(row, "hash"), view_text(row, "model"),
               spans[span >= 1 && span <= 3 ? (int)span : 0], view_number(row, "bytes", 0) * 1e-6,
               view_number(row, "tokens", 0));
    }
}

void profile_print_text(const json_t *document, unsigned parts)
{
    print_head(document);
    if (parts & PROFILE_PRINT_DEVICES) {
        print_devices(document);
        print_busy(document);
        print_fits(document);
        print_loads(document);
        print_break_even(document);
    }
    if (parts & PROFILE_PRINT_CODECS) print_codecs(document);
    if (parts & PROFILE_PRINT_QUALITY) {
        print_quality(document);
        print_calibrations(document);
        print_bases(document);
        print_learned(document);
    }
}

/* ---- the command ---- */

#define SHOW_PAGES "pages and figures come from --json | kvterrace report - -o PAGE.html"

typedef struct show_arguments {
    command_common common;
    uint64_t token_bytes;
} show_arguments;

static const command_option show_rows[] = {
    DATABASE_OPTION,
    GONE_OPTION("html", SHOW_PAGES),
    GONE_OPTION("plot", SHOW_PAGES),
    {.name = "token-bytes",
     .letter = 'b',
     .argument = "SIZE",
     .text = "Decoded KV of a token, for break-even lengths (that of the prefill's model; 128KiB)",
     .kind = OPTION_SIZE,
     .offset = offsetof(show_arguments, token_bytes),
     .least = 1,
     .most = 1.0995116e12},
    {0},
};

/* A database without devices has no table of its own rows: their counts, and what comes next. */
static void show_text(const json_t *document)
{
    static const struct {
        const char *key, *name;
    } parts[] = {
        {"codecs", "codec curves"},       {"models", "models"}, {"quality_sets", "sets of losses"},
        {"calibrations", "calibrations"}, {"bases", "bases"},   {"learned", "learned figures"}};
    const char *path = view_text(document, "database");
    const json_t *row;
    size_t i, prefills = 0;
    profile_print_text(document, PROFILE_PRINT_ALL);
    if (json_array_size(json_object_get(document, "devices")) > 0) return;
    json_array_foreach(json_object_get(document, "prefill"), i, row)
    {
        prefills += strcmp(view_text(row, "source"), "preset") != 0;
    }
    printf("\nIt holds no device, %zu prefill curves", prefills);
    for (i = 0; i < sizeof parts / sizeof parts[0]; i++)
        printf(", %zu %s", json_array_size(json_object_get(document, parts[i].key)), parts[i].name);
    printf(".\nkvterrace profile devices codecs --database %s measures this machine;\n"
           "kvterrace profile export --database %s prints every row.\n",
           path, path);
}

static int show_run(void *context)
{
    const show_arguments *arguments = context;
    char message[COMMAND_MESSAGE_BYTES] = "";
    kvt_profile *profile = NULL;
    json_t *document = NULL;
    kvt_config *config = arguments->common.config;
    const profile_view view = {.path = command_profile_path(config),
                               .token_bytes = (double)arguments->token_bytes};
    kvt_status status =
        command_profile_open(config, KVT_PROFILE_READ, &profile, message, sizeof message);
    if (status != KVT_OK) return command_fail_input(status, message);
    status = profile_document_make(profile, &view, &document);
    if (status == KVT_OK && arguments->common.json)
        status = command_print_exact(json_incref(document));
    else if (status == KVT_OK)
        show_text(document);
    json_decref(document);
    kvt_profile_close(profile);
    return status == KVT_OK ? EXIT_FINE : command_fail(status, message);
}

const command_spec profile_show_spec = {
    .name = "show",
    .summary = "show what was measured",
    .about = "Shows what a profile database holds.",
    .example = "  kvterrace profile show --database profile.db --json >profile.json\n"
               "  kvterrace report profile.json -o profile.html",
    .options = show_rows,
    .argument_bytes = sizeof(show_arguments),
    .run = show_run,
    .settings = SETTINGS_PROFILE,
};
