/* SPDX-License-Identifier: Apache-2.0 */
/*
 * profile_plot_script.c - see profile_plot_script.h. One thread.
 *
 * Data stand in the scripts, so that a plot can be drawn again from its script alone. Legends are
 * outside of the data. Exact forms have no place on a logarithmic scale of loss and are left out.
 */
#include "profile_plot_script.h"

#include "profile_document.h"

#include <math.h>
#include <string.h>

static const char *const script_colours[] = {"#2f6fde", "#e07b1a", "#1f9d68", "#b3419a",
                                             "#d0433c", "#3aa3b8", "#c2a100", "#7a5cd6"};
#define SCRIPT_COLOURS 8u

static const struct {
    const char *family, *colour;
    int mark;
} script_families[] = {
    {"kivi", "#d0433c", 7},    {"planes", "#2f6fde", 5}, {"entropy", "#1f9d68", 9},
    {"rotate", "#e07b1a", 11}, {"drop", "#b3419a", 13},  {"lossless", "#8a8f98", 3},
};
#define SCRIPT_FAMILIES     6u
#define SCRIPT_LOSSES_LEAST 3u /* fewer points say no more than a table */

static const uint32_t script_depths_most = 8;

void script_quote(FILE *script, const char *text)
{
    fputc('\'', script);
    for (; *text != '\0'; text++) {
        bool plain = (*text >= 'a' && *text <= 'z') || (*text >= 'A' && *text <= 'Z') ||
                     (*text >= '0' && *text <= '9') || strchr(" .,:;_+-/%()=<>#*!?", *text);
        fputc(plain ? *text : '_', script);
    }
    fputc('\'', script);
}

/* What all plots share: grid behind the data, soft borders, the legend outside. */
static void script_open(FILE *script, const char *key, const char *x, const char *y)
{
    fprintf(script,
            "set border 3 linecolor rgb '#98a2b3'\n"
            "set grid xtics ytics linecolor rgb '#e3e6eb' linetype 1 linewidth 1\n"
            "set tics nomirror textcolor rgb '#475467'\n"
            "set key %s Left reverse samplen 2 spacing 1.2 textcolor rgb '#1c2430'\n"
            "set xlabel '%s' textcolor rgb '#1c2430'\n"
            "set ylabel '%s' textcolor rgb '#1c2430'\n",
            key, x, y);
}

#define SCRIPT_KEY_RIGHT "outside right top vertical"
#define SCRIPT_KEY_ABOVE "tmargin left horizontal width 2"

/* ---- loss against bits ---- */

static bool script_is_family(const json_t *curve, const char *family)
{
    const char *name = view_text(curve, "name");
    size_t length = strlen(family);
    return strncmp(name, family, length) == 0 && (name[length] == ':' || name[length] == '\0');
}

bool script_has_loss(const json_t *set)
{
    const json_t *curve;
    size_t i, drawn = 0;
    json_array_foreach(json_object_get(set, "curves"), i, curve)
    {
        if (view_number(curve, "loss_mean", 0) <= 0) continue;
        for (size_t family = 0; family < SCRIPT_FAMILIES; family++)
            drawn += script_is_family(curve, script_families[family].family);
    }
    return drawn >= SCRIPT_LOSSES_LEAST;
}

/* The family's points by falling bits, as the document has them. Returns how many. */
static int script_loss_data(const json_t *set, size_t family, double floor_at, FILE *script)
{
    const json_t *curve;
    size_t i;
    int count = 0;
    json_array_foreach(json_object_get(set, "curves"), i, curve)
    {
        double mean = view_number(curve, "loss_mean", 0);
        if (mean <= 0 || !script_is_family(curve, script_families[family].family)) continue;
        if (count == 0) fprintf(script, "$family%zu << EOD\n", family);
        fprintf(script, "%.6g %.6g %.6g %.6g\n", view_number(curve, "bits_per_element", 1), mean,
                fmax(view_number(curve, "loss_low", mean), floor_at),
                fmax(view_number(curve, "loss_high", mean), floor_at));
        count++;
    }
    if (count > 0) fprintf(script, "EOD\n");
    return count;
}

/* The family's best: points that no other of it beats with fewer bits, by rising bits. */
static void script_loss_front(const json_t *set, size_t family, FILE *script)
{
    const json_t *curves = json_object_get(set, "curves");
    double best = INFINITY;
    fprintf(script, "$front%zu << EOD\n", family);
    for (size_t i = json_array_size(curves); i > 0; i--) {
        const json_t *curve = json_array_get(curves, i - 1);
        double mean = view_number(curve, "loss_mean", 0);
        if (mean <= 0 || mean >= best) continue;
        if (!script_is_family(curve, script_families[family].family)) continue;
        fprintf(script, "%.6g %.6g\n", view_number(curve, "bits_per_element", 1), mean);
        best = mean;
    }
    fprintf(script, "EOD\n");
}

/* The decade below the least loss, which intervals that reach zero end at. */
static double script_loss_floor(const json_t *set)
{
    const json_t *curve;
    size_t i;
    double least = 1.0;
    json_array_foreach(json_object_get(set, "curves"), i, curve)
    {
        double mean = view_number(curve, "loss_mean", 0);
        if (mean > 0) least = fmin(least, mean);
    }
    return pow(10.0, floor(log10(least) - 0.2));
}

void script_draw_loss(const profile_plot *plot, FILE *script)
{
    const double floor_at = script_loss_floor(plot->subject);
    int counts[SCRIPT_FAMILIES];
    for (size_t i = 0; i < SCRIPT_FAMILIES; i++) {
        counts[i] = script_loss_data(plot->subject, i, floor_at, script);
        if (counts[i] > 0) script_loss_front(plot->subject, i, script);
    }
    script_open(script, SCRIPT_KEY_ABOVE, "stored bits per element", "loss: 1 - quality");
    fprintf(script,
            "set logscale x 2\nset logscale y 10\nset format y '%%g'\n"
            "set xtics (0.25, 0.5, 1, 2, 3, 4, 6, 8, 12, 16)\nset xrange [*:*]\n"
            "set offsets graph 0.04, graph 0.04, 0, 0\nset yrange [%.6g:1]\nplot ",
            floor_at);
    bool first = true;
    for (size_t i = 0; i < SCRIPT_FAMILIES; i++) {
        if (counts[i] == 0) continue;
        const char *colour = script_families[i].colour;
        fprintf(script,
                "%s$front%zu using 1:2 with lines linecolor rgb '%s' linewidth 1.2 dashtype 3 "
                "notitle, \\\n  $family%zu using 1:2:3:4 with yerrorbars linecolor rgb '%s' "
                "pointtype %d pointsize 0.9 linewidth 1.6 title '%s'",
                first ? "" : ", \\\n  ", i, colour, i, colour, script_families[i].mark,
                script_families[i].family);
        first = false;
    }
    fprintf(script, "\n");
}

/* ---- devices ---- */

static void script_size_axis(FILE *script)
{
    fprintf(script, "set logscale x 2\nset xtics ('4 KiB' 4096, '16 KiB' 16384, '64 KiB' 65536, "
                    "'256 KiB' 262144, '1 MiB' 1048576, '4 MiB' 4194304)\n"
                    "set offsets graph 0.03, graph 0.03, 0, 0\n");
}

/* The depths that a direction was measured at, rising. */
static uint32_t script_depths(const json_t *device, const char *kind, uint32_t *depths)
{
    const json_t *point;
    size_t i;
    uint32_t count = 0;
    json_array_foreach(json_object_get(device, "points"), i, point)
    {
        uint32_t depth = (uint32_t)view_number(point, "depth", 0), at = 0;
        if (strcmp(view_text(point, "kind"), kind) != 0) continue;
        while (at < count && depths[at] < depth)
            at++;
        if ((at < count && depths[at] == depth) || count == script_depths_most) continue;
        memmove(&depths[at + 1], &depths[at], (count - at) * sizeof *depths);
        depths[at] = depth;
        count++;
    }
    return count;
}

static void script_bandwidth_data(const json_t *device, const char *kind, uint32_t depth,
                                  FILE *script)
{
    const json_t *point;
    size_t i;
    fprintf(script, "$%s%u << EOD\n", kind, (unsigned)depth);
    json_array_foreach(json_object_get(device, "points"), i, point)
    {
        if (strcmp(view_text(point, "kind"), kind) != 0 ||
            (uint32_t)view_number(point, "depth", 0) != depth) {
            continue;
        }
        fprintf(script, "%.0f %.6g %.6g %.6g\n", view_number(point, "request_bytes", 0),
                1e-6 * view_number(point, "bytes_per_s", 0),
                1e-6 * view_number(point, "bytes_per_s_min", 0),
                1e-6 * view_number(point, "bytes_per_s_max", 0));
    }
    fprintf(script, "EOD\n");
}

/* Room above and below, where a line would lie on the border. */
static void script_bandwidth_range(const json_t *device, FILE *script)
{
    const json_t *point;
    size_t i;
    double low = INFINITY, high = 0.0;
    json_array_foreach(json_object_get(device, "points"), i, point)
    {
        low = fmin(low, 1e-6 * view_number(point, "bytes_per_s_min", INFINITY));
        high = fmax(high, 1e-6 * view_number(point, "bytes_per_s_max", 0));
    }
    if (high > 0) fprintf(script, "set yrange [%.4g:%.4g]\n", 0.7 * low, 1.4 * high);
}

void script_draw_bandwidth(const profile_plot *plot, FILE *script)
{
    static const char *const shades[2][4] = {{"#a9c5f5", "#6f9dec", "#2f6fde", "#123f94"},
                                             {"#f7cfa6", "#eda660", "#d9700f", "#8a4200"}};
    static const char *const kinds[2] = {"read", "write"};
    uint32_t depths[2][8], counts[2];
    for (int kind = 0; kind < 2; kind++) {
        counts[kind] = script_depths(plot->subject, kinds[kind], depths[kind]);
        for (uint32_t i = 0; i < counts[kind]; i++)
            script_bandwidth_data(plot->subject, kinds[kind], depths[kind][i], script);
    }
    script_open(script, SCRIPT_KEY_ABOVE " maxrows 4", "request size", "MB/s");
    script_size_axis(script);
    fprintf(script, "set logscale y 10\nset format y '%%g'\n");
    script_bandwidth_range(plot->subject, script);
    fprintf(script, "plot ");
    bool first = true;
    for (int kind = 0; kind < 2; kind++) {
        for (uint32_t i = 0; i < counts[kind]; i++) {
            const unsigned depth = depths[kind][i];
            const char *colour = shades[kind][i * 4u / counts[kind]];
            fprintf(script,
                    "%s$%s%u using 1:2 with lines linecolor rgb '%s' linewidth 1.8 dashtype %d "
                    "notitle, \\\n  $%s%u using 1:2:3:4 with yerrorbars linecolor rgb '%s' "
                    "linewidth 1.6 pointtype %d pointsize 0.7 title '%s, %u in flight'",
                    first ? "" : ", \\\n  ", kinds[kind], depth, colour, kind == 0 ? 1 : 2,
                    kinds[kind], depth, colour, kind == 0 ? 7 : 5, kinds[kind], depth);
            first = false;
        }
    }
    fprintf(script, "\n");
}

/* Whether single requests were measured: there is more to draw than the model. */
static bool script_has_latency(const json_t *device, const char *kind)
{
    const json_t *point;
    size_t i;
    json_array_foreach(json_object_get(device, "points"), i, point)
    {
        if (strcmp(view_text(point, "kind"), kind) == 0 && view_number(point, "depth", 0) == 1 &&
            view_number(point, "latency_seconds_p50", 0) > 0) {
            return true;
        }
    }
    return false;
}

bool script_has_latencies(const json_t *document, const char *kind)
{
    const json_t *device;
    size_t i;
    kvt_affine fit;
    json_array_foreach(json_object_get(document, "devices"), i, device)
    {
        if (script_has_latency(device, kind) && view_affine(device, kind, &fit)) return true;
    }
    return false;
}

static void script_latency_data(const json_t *device, const char *kind, size_t index, FILE *script)
{
    const json_t *point;
    size_t i;
    fprintf(script, "$device%zu << EOD\n", index);
    json_array_foreach(json_object_get(device, "points"), i, point)
    {
        if (strcmp(view_text(point, "kind"), kind) != 0 ||
            (uint32_t)view_number(point, "depth", 0) != 1) {
            continue;
        }
        double p50 = 1e3 * view_number(point, "latency_seconds_p50", 0);
        if (p50 <= 0) continue;
        fprintf(script, "%.0f %.6g %.6g %.6g\n", view_number(point, "request_bytes", 0), p50, p50,
                1e3 * view_number(point, "latency_seconds_p99", 0));
    }
    fprintf(script, "EOD\n");
}

/* Measured requests at depth 1 as points up to their 99th percentile, the models as lines. */
void script_draw_latency(const profile_plot *plot, FILE *script)
{
    const json_t *devices = json_object_get(plot->document, "devices"), *device;
    size_t i;
    bool first = true;
    kvt_affine fit;
    json_array_foreach(devices, i, device)
    {
        if (!view_affine(device, plot->part, &fit) || !script_has_latency(device, plot->part)) {
            continue;
        }
        script_latency_data(device, plot->part, i, script);
    }
    script_open(script, SCRIPT_KEY_ABOVE, "request size", "milliseconds");
    script_size_axis(script);
    fprintf(script, "set logscale y 10\nset format y '%%g'\nset xrange [3800:1130000]\n"
                    "set samples 200\nset offsets 0, 0, 0, 0\nplot ");
    json_array_foreach(devices, i, device)
    {
        const char *colour = script_colours[i % SCRIPT_COLOURS];
        if (!view_affine(device, plot->part, &fit) || !script_has_latency(device, plot->part)) {
            continue;
        }
        fprintf(script,
                "%s%.9g + x * %.9g with lines linecolor rgb '%s' linewidth 1.6 notitle, \\\n  "
                "$device%zu using 1:2:3:4 with yerrorbars linecolor rgb '%s' pointtype 7 "
                "pointsize 0.8 title ",
                first ? "" : ", \\\n  ", 1e3 * fit.request_seconds, 1e3 / fit.bytes_per_s, colour,
                i, colour);
        script_quote(script, view_text(device, "device"));
        first = false;
    }
    fprintf(script, "\n");
}

/* ---- loading and computing ---- */

/* A load is a line in tokens: two of the table's lengths give it. */
static void script_load_line(const json_t *table, const json_t *row, FILE *script)
{
    const json_t *tokens = json_object_get(table, "tokens");
    const json_t *seconds = json_object_get(row, "seconds");
    const size_t last = json_array_size(tokens) - 1;
    const double x0 = json_number_value(json_array_get(tokens, 0));
    const double x1 = json_number_value(json_array_get(tokens, last));
    const double y0 = json_number_value(json_array_get(seconds, 0));
    const double slope = (json_number_value(json_array_get(seconds, last)) - y0) / (x1 - x0);
    fprintf(script, "%.9g + x * %.9g", y0 - slope * x0, slope);
}

static void script_prefill_line(const json_t *document, const char *name, FILE *script)
{
    const json_t *prefill;
    size_t i;
    json_array_foreach(json_object_get(document, "prefill"), i, prefill)
    {
        if (strcmp(view_text(prefill, "name"), name) != 0) continue;
        fprintf(script, "%.9g + x * %.9g + x * x * %.9g", view_number(prefill, "fixed_seconds", 0),
                view_number(prefill, "linear_seconds_per_token", 0),
                view_number(prefill, "square_seconds_per_token2", 0));
        return;
    }
    fprintf(script, "1/0");
}

/* Whether a device or a load was measured here; imported ones are drawn when nothing was. */
static bool script_is_drawn(const json_t *rows, const json_t *row)
{
    const json_t *other;
    size_t i;
    if (!json_is_true(json_object_get(row, "imported"))) return true;
    json_array_foreach(rows, i, other)
    {
        if (!json_is_true(json_object_get(other, "imported"))) return false;
    }
    return true;
}

void script_draw_load(const profile_plot *plot, FILE *script)
{
    const json_t *row;
    size_t i;
    bool first = true;
    script_open(script, SCRIPT_KEY_RIGHT, "tokens of context", "seconds");
    fprintf(script, "set logscale xy\nset logscale x 2\nset format y '%%g'\n"
                    "set xtics ('256' 256, '1 K' 1024, '4 K' 4096, '16 K' 16384, '64 K' 65536)\n"
                    "set xrange [256:131072]\nset samples 200\nplot ");
    const json_t *loads = json_object_get(plot->subject, "loads");
    json_array_foreach(loads, i, row)
    {
        if (!script_is_drawn(loads, row)) continue;
        fprintf(script, first ? "" : ", \\\n  ");
        script_load_line(plot->subject, row, script);
        fprintf(script, " with lines linecolor rgb '%s' linewidth 2 title ",
                script_colours[i % SCRIPT_COLOURS]);
        script_quote(script, view_text(row, "device"));
        first = false;
    }
    json_array_foreach(json_object_get(plot->subject, "prefills"), i, row)
    {
        static const int dashes[] = {2, 4, 5, 3};
        char title[128];
        fprintf(script, first ? "" : ", \\\n  ");
        script_prefill_line(plot->document, view_text(row, "prefill"), script);
        (void)snprintf(title, sizeof title, "compute, %s", view_text(row, "prefill"));
        fprintf(script, " with lines linecolor rgb '#1c2430' linewidth 1.6 dashtype %d title ",
                dashes[i % 4]);
        script_quote(script, title);
        first = false;
    }
    fprintf(script, "\n");
}

/* ---- codecs ---- */

/* One way of running codecs: an instruction set on so many threads. */
typedef struct script_way {
    const char *isa;
    double threads;
} script_way;

#define SCRIPT_WAYS 8u

static size_t script_ways(const profile_plot *plot, script_way *ways)
{
    const json_t *codec;
    size_t i, count = 0;
    json_array_foreach(json_object_get(plot->document, "codecs"), i, codec)
    {
        script_way way = {view_text(codec, "isa"), view_number(codec, "threads", 1)};
        bool known = strcmp(view_text(codec, "source"), plot->part) != 0;
        for (size_t j = 0; j < count; j++) {
            if (strcmp(ways[j].isa, way.isa) == 0 && ways[j].threads == way.threads) known = true;
        }
        if (!known && count < SCRIPT_WAYS) ways[count++] = way;
    }
    return count;
}

/* The place of a variant on the axis, from the top: the order of the best rows. */
static int script_codec_place(const profile_plot *plot, const char *name, int rows)
{
    const json_t *codec;
    size_t i;
    int place = rows;
    const char *isa = NULL;
    double threads = 0;
    json_array_foreach(json_object_get(plot->document, "codecs"), i, codec)
    {
        if (strcmp(view_text(codec, "source"), plot->part) != 0) continue;
        if (isa == NULL) {
            isa = view_text(codec, "isa");
            threads = view_number(codec, "threads", 1);
        }
        if (strcmp(view_text(codec, "isa"), isa) != 0 ||
            view_number(codec, "threads", 1) != threads) {
            continue;
        }
        if (strcmp(view_text(codec, "name"), name) == 0) return place;
        place--;
    }
    return 0;
}

static void script_codecs_data(const profile_plot *plot, const script_way *way, size_t index,
                               int rows, FILE *script)
{
    const json_t *codec;
    size_t i;
    fprintf(script, "$way%zu << EOD\n", index);
    json_array_foreach(json_object_get(plot->document, "codecs"), i, codec)
    {
        if (strcmp(view_text(codec, "source"), plot->part) != 0 ||
            strcmp(view_text(codec, "isa"), way->isa) != 0 ||
            view_number(codec, "threads", 1) != way->threads) {
            continue;
        }
        int place = script_codec_place(plot, view_text(codec, "name"), rows);
        if (place == 0) continue;
        fprintf(script, "%d %.6g %.6g\n", place, 1e-9 * view_number(codec, "encode_bytes_per_s", 0),
                1e-9 * view_number(codec, "decode_bytes_per_s", 0));
    }
    fprintf(script, "EOD\n");
}

static int script_codec_rows(const profile_plot *plot, const script_way *way)
{
    const json_t *codec;
    size_t i;
    int rows = 0;
    json_array_foreach(json_object_get(plot->document, "codecs"), i, codec)
    {
        rows += strcmp(view_text(codec, "source"), plot->part) == 0 &&
                strcmp(view_text(codec, "isa"), way->isa) == 0 &&
                view_number(codec, "threads", 1) == way->threads;
    }
    return rows;
}

static void script_codec_names(const profile_plot *plot, int rows, FILE *script)
{
    const json_t *codec;
    size_t i;
    int last = rows + 1;
    fprintf(script, "set ytics (");
    json_array_foreach(json_object_get(plot->document, "codecs"), i, codec)
    {
        if (strcmp(view_text(codec, "source"), plot->part) != 0) continue;
        int place = script_codec_place(plot, view_text(codec, "name"), rows);
        if (place >= last || place == 0) continue; /* another way's */
        if (last <= rows) fprintf(script, ", ");
        script_quote(script, view_text(codec, "name"));
        fprintf(script, " %d", place);
        last = place;
    }
    fprintf(script, ")\n");
}

void script_draw_codecs(const profile_plot *plot, FILE *script)
{
    script_way ways[SCRIPT_WAYS];
    const size_t count = script_ways(plot, ways);
    const int rows = count > 0 ? script_codec_rows(plot, &ways[0]) : 0;
    for (size_t i = 0; i < count; i++)
        script_codecs_data(plot, &ways[i], i, rows, script);
    script_open(script, SCRIPT_KEY_RIGHT, "GB/s of decoded KV", "");
    script_codec_names(plot, rows, script);
    fprintf(script,
            "set logscale x 10\nset format x '%%g'\n"
            "set yrange [0.3:%d.7]\nset offsets graph 0.03, graph 0.03, 0, 0\nplot ",
            rows);
    for (size_t i = 0; i < 2 * count; i++) {
        const size_t way = i % count;
        char title[64];
        (void)snprintf(title, sizeof title, "%s x%.0f %s", ways[way].isa, ways[way].threads,
                       i < count ? "decode" : "encode");
        fprintf(script,
                "%s$way%zu using %d:1 with points pointtype %d pointsize 0.8 linecolor rgb '%s' "
                "title ",
                i > 0 ? ", \\\n  " : "", way, i < count ? 3 : 2, i < count ? 7 : 6,
                script_colours[way % SCRIPT_COLOURS]);
        script_quote(script, title);
    }
    fprintf(script, "\n");
}
