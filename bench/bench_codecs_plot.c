/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_codecs_plot.c - error against bits as one SVG file: a panel per source (the models', or the
 * sample's when there is none), bits per element across, the error on a logarithmic scale up: KL
 * where a model judged, else the attention error. One mark per variant. No script, no other file.
 *
 * Thread rule: one bench at a time.
 */
#include "bench_codecs.h"

#include <math.h>
#include <string.h>

enum {
    PLOT_WIDTH = 960,
    PLOT_HEIGHT = 720, /* of a panel */
    PLOT_LEFT = 70,
    PLOT_RIGHT = 30,
    PLOT_TOP = 50,
    PLOT_BOTTOM = 50,
    PLOT_LABELS_MAX = 128, /* whose places are remembered */
    PLOT_LABEL_STEP = 11,
    PLOT_LABEL_TRIES = 24
};

#define PLOT_GLYPH 5.3 /* mean width of a glyph of a label */

typedef struct plot_box {
    double left, right, y;
} plot_box;

typedef struct plot_panel {
    FILE *file;
    const bench_codec_source *source;
    bool judged;
    int top; /* of the panel in the figure */
    double bits_most;
    double low, high; /* decades */
    plot_box labels[PLOT_LABELS_MAX];
    uint32_t label_count;
} plot_panel;

static const struct {
    const char *codec, *colour;
} plot_colours[] = {
    {"kivi", "#d0433c"},   {"planes", "#2f6fde"}, {"entropy", "#1f9d68"},
    {"rotate", "#e07b1a"}, {"drop", "#b3419a"},   {"lossless", "#8a8f98"},
};

static const char *plot_colour(const char *codec)
{
    for (size_t i = 0; i < sizeof plot_colours / sizeof plot_colours[0]; i++)
        if (strcmp(plot_colours[i].codec, codec) == 0) return plot_colours[i].colour;
    return "#444444";
}

/* What is drawn; exact variants have no place on a logarithmic scale. */
static bool plot_error(const plot_panel *panel, const bench_codec_loss *loss, double *error_out)
{
    if (!loss->present || (panel->judged && !loss->judged)) return false;
    *error_out = panel->judged ? loss->kl : loss->attention_error;
    return *error_out > 1e-12 && isfinite(*error_out);
}

static double plot_x(const plot_panel *panel, double bits)
{
    return PLOT_LEFT + (PLOT_WIDTH - PLOT_LEFT - PLOT_RIGHT) * bits / panel->bits_most;
}

static double plot_y(const plot_panel *panel, double error)
{
    double share = (log10(error) - panel->low) / (panel->high - panel->low);
    return panel->top + PLOT_HEIGHT - PLOT_BOTTOM - (PLOT_HEIGHT - PLOT_TOP - PLOT_BOTTOM) * share;
}

static void plot_text(FILE *file, const char *text)
{
    for (; *text != '\0'; text++) {
        switch (*text) {
        case '<': fputs("&lt;", file); break;
        case '>': fputs("&gt;", file); break;
        case '&': fputs("&amp;", file); break;
        default: fputc(*text, file);
        }
    }
}

/* Whole decades and a multiple of two bits that hold every mark. False when there is none. */
static bool plot_range(const bench_codec_results *results, plot_panel *panel)
{
    double least = INFINITY, most = 0.0, error;
    panel->bits_most = 2.0;
    for (uint32_t i = 0; i < results->variant_count; i++) {
        const bench_codec_loss *loss = &panel->source->losses[i];
        if (!plot_error(panel, loss, &error)) continue;
        least = fmin(least, error);
        most = fmax(most, error);
        panel->bits_most = fmax(panel->bits_most, ceil(loss->bits_per_element / 2 + 0.1) * 2);
    }
    if (most <= 0.0) return false;
    panel->low = floor(log10(least));
    panel->high = fmax(ceil(log10(most)), panel->low + 1.0);
    return true;
}

static void plot_grid(const plot_panel *panel)
{
    const int bottom = panel->top + PLOT_HEIGHT - PLOT_BOTTOM;
    for (double bits = 0.0; bits <= panel->bits_most; bits += 1.0) {
        double x = plot_x(panel, bits);
        fprintf(panel->file,
                "<line class=\"grid\" x1=\"%.1f\" y1=\"%d\" x2=\"%.1f\" y2=\"%d\"/>"
                "<text class=\"tick\" x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%.0f</text>\n",
                x, panel->top + PLOT_TOP, x, bottom, x, bottom + 16, bits);
    }
    for (double decade = panel->low; decade <= panel->high + 0.01; decade += 1.0) {
        double y = plot_y(panel, pow(10.0, decade));
        fprintf(panel->file,
                "<line class=\"grid\" x1=\"%d\" y1=\"%.1f\" x2=\"%d\" y2=\"%.1f\"/>"
                "<text class=\"tick\" x=\"%d\" y=\"%.1f\" text-anchor=\"end\">1e%.0f</text>\n",
                PLOT_LEFT, y, PLOT_WIDTH - PLOT_RIGHT, y, PLOT_LEFT - 8, y + 4, decade);
    }
    fprintf(panel->file, "<text class=\"title\" x=\"%d\" y=\"%d\">", PLOT_LEFT, panel->top + 22);
    plot_text(panel->file, panel->source->name);
    fprintf(panel->file, ": %s against stored bits per element</text>\n",
            panel->judged ? "mean KL, nats per token" : "attention error");
}

/* Moves a label up and down until it covers none that is drawn already. */
static double plot_place(plot_panel *panel, double left, double right, double y)
{
    double placed = y;
    for (int attempt = 0; attempt < PLOT_LABEL_TRIES; attempt++) {
        bool free_place = true;
        placed = y + (attempt % 2 == 0 ? 1 : -1) * ((attempt + 1) / 2) * PLOT_LABEL_STEP;
        for (uint32_t i = 0; i < panel->label_count && free_place; i++) {
            const plot_box *other = &panel->labels[i];
            free_place = left > other->right || right < other->left ||
                         fabs(placed - other->y) >= PLOT_LABEL_STEP - 0.5;
        }
        if (free_place) break;
    }
    if (panel->label_count < PLOT_LABELS_MAX)
        panel->labels[panel->label_count++] = (plot_box){left, right, placed};
    return placed;
}

static void plot_mark(plot_panel *panel, const bench_codec_variant *variant,
                      const bench_codec_loss *loss)
{
    double error;
    if (!plot_error(panel, loss, &error)) return;
    double x = plot_x(panel, loss->bits_per_element), y = plot_y(panel, error);
    double width = PLOT_GLYPH * (double)strlen(variant->name);
    bool flip = x > PLOT_WIDTH * 0.75;
    double at = flip ? x - 14 : x + 14;
    double label = plot_place(panel, flip ? at - width : at, flip ? at : at + width, y);
    const char *colour = plot_colour(variant->codec);
    fprintf(panel->file, "<g><title>");
    plot_text(panel->file, variant->name);
    fprintf(panel->file,
            ", %.3f bits, %.3g</title><line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" "
            "stroke=\"%s\" stroke-width=\"0.6\"/>"
            "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3.5\" fill=\"%s\"/></g>"
            "<text class=\"name\" x=\"%.1f\" y=\"%.1f\" fill=\"%s\" text-anchor=\"%s\">",
            loss->bits_per_element, error, x, y, at, label, colour, x, y, colour,
            flip ? at - 2 : at + 2, label + 3.5, colour, flip ? "end" : "start");
    plot_text(panel->file, variant->name);
    fprintf(panel->file, "</text>\n");
}

static void plot_panel_draw(const bench_codec_results *results, plot_panel *panel)
{
    panel->judged = panel->source->exact.judged;
    if (!plot_range(results, panel)) return;
    plot_grid(panel);
    for (uint32_t i = 0; i < results->variant_count; i++)
        plot_mark(panel, &results->variants[i], &panel->source->losses[i]);
}

int bench_codecs_plot(const bench_codec_results *results, const char *path)
{
    const uint32_t first = results->source_count > 1 ? 1 : 0;
    const uint32_t count = results->source_count - first;
    FILE *file = fopen(path, "w");
    if (file == NULL) return 1;
    fprintf(file,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %u\" role=\"img\">\n"
            "<style>text{font:11px sans-serif}.title{font-size:15px;font-weight:600}"
            ".tick{fill:#666}.name{font-size:10px}.grid{stroke:#ddd}</style>\n"
            "<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n",
            PLOT_WIDTH, (unsigned)(count * PLOT_HEIGHT));
    for (uint32_t i = 0; i < count; i++) {
        plot_panel panel = {
            .file = file, .source = &results->sources[first + i], .top = (int)(i * PLOT_HEIGHT)};
        plot_panel_draw(results, &panel);
    }
    fprintf(file, "</svg>\n");
    int failed = ferror(file);
    return (fclose(file) != 0) | failed;
}
