/* SPDX-License-Identifier: Apache-2.0 */
/*
 * report_figures.c - the figures of the HTML report as inline SVG. One thread.
 *
 * Sizes are user units of a view box 900 wide; the page scales it. Colours come from the page's
 * style through classes, so that the dark scheme reaches the figures too.
 */
#include "report_page.h"
#include "results.h"
#include "results_text.h"

#include <math.h>
#include <string.h>

#define FIGURE_WIDTH 900
#define FIGURE_LEFT  150
#define FIGURE_RIGHT 90
#define FIGURE_PLOT  (FIGURE_WIDTH - FIGURE_LEFT - FIGURE_RIGHT)
#define BAR_STEP     34
#define BAR_HEIGHT   20

static const char *const page_colours[PAGE_COLOURS] = {"#8a8f98", "#2f6fde", "#e07b1a", "#1f9d68",
                                                       "#b3419a", "#c2a100", "#d0433c", "#3aa3b8"};

const char *page_colour(size_t index)
{
    return page_colours[index % PAGE_COLOURS];
}

void page_label(const replay_report *report, size_t index, char *text, size_t size)
{
    const replay_result *result = &report->results[index];
    bool repeated = false;
    for (size_t i = 0; i < report->result_count; i++) {
        if (i != index && strcmp(report->results[i].policy, result->policy) == 0) repeated = true;
    }
    if (repeated) {
        snprintf(text, size, "%s, seed %llu", result->policy, (unsigned long long)result->seed);
    } else {
        snprintf(text, size, "%s", result->policy);
    }
}

/* The smallest of 1, 2, 5 times a power of ten that is at least value / steps. */
static double figure_step(double value, int steps)
{
    double least = value / steps;
    if (!(least > 0.0)) return 1.0;
    double power = pow(10.0, floor(log10(least)));
    if (power >= least) return power;
    if (2.0 * power >= least) return 2.0 * power;
    return 5.0 * power >= least ? 5.0 * power : 10.0 * power;
}

static void figure_open(FILE *file, int height, const char *title)
{
    fprintf(file, "<svg viewBox=\"0 0 %d %d\" role=\"img\" aria-label=\"%s\">\n", FIGURE_WIDTH,
            height, title);
}

/* Vertical grid lines with labels below, from 0 to most. */
static void figure_grid(FILE *file, double most, double step, int height, bool percent)
{
    for (double value = 0.0; value <= most * 1.0001; value += step) {
        double x = FIGURE_LEFT + FIGURE_PLOT * value / most;
        char text[RESULTS_TEXT_BYTES];
        if (percent) {
            snprintf(text, sizeof text, "%.3g %%", value * 100.0);
        } else {
            results_format_seconds(value, text);
        }
        fprintf(file,
                "<line class=\"grid\" x1=\"%.1f\" y1=\"6\" x2=\"%.1f\" y2=\"%d\"/>"
                "<text class=\"tick\" x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%s</text>\n",
                x, x, height - 22, x, height - 6, text);
    }
}

static void figure_label(const replay_report *report, size_t index, int y, FILE *file)
{
    char label[64];
    page_label(report, index, label, sizeof label);
    fprintf(file, "<text class=\"name\" x=\"%d\" y=\"%d\" text-anchor=\"end\">", FIGURE_LEFT - 10,
            y + BAR_HEIGHT - 5);
    page_text(file, label);
    fprintf(file, "</text>\n");
}

/* One stacked bar; parts in order with their classes, the sum as text behind it. */
static void figure_bar(FILE *file, int y, const double *parts, const char *const *classes,
                       int count, double most, const char *sum)
{
    double x = FIGURE_LEFT;
    for (int i = 0; i < count; i++) {
        double width = FIGURE_PLOT * parts[i] / most;
        if (width > 0.0) {
            fprintf(file, "<rect class=\"%s\" x=\"%.2f\" y=\"%d\" width=\"%.2f\" height=\"%d\"/>\n",
                    classes[i], x, y, width, BAR_HEIGHT);
        }
        x += width;
    }
    fprintf(file, "<text class=\"value\" x=\"%.1f\" y=\"%d\">%s</text>\n", x + 7,
            y + BAR_HEIGHT - 5, sum);
}

static void figure_legend(FILE *file, const char *const *classes, const char *const *names,
                          int count)
{
    fprintf(file, "<p class=\"legend\">");
    for (int i = 0; i < count; i++) {
        fprintf(file, "<span><i class=\"%s\"></i>%s</span>", classes[i], names[i]);
    }
    fprintf(file, "</p>\n");
}

void page_bars_ttft(const replay_report *report, FILE *file)
{
    static const char *const classes[] = {"wait", "blocked", "compute"};
    const bool live = report->result_count > 0 && strcmp(report->results[0].mode, "live") == 0;
    const char *const names[] = {"waiting for a server",
                                 live ? "blocked on loads, and what this machine adds by itself"
                                      : "blocked on loads",
                                 "prefill"};
    double most = 0.0;
    for (size_t i = 0; i < report->result_count; i++) {
        const replay_result *result = &report->results[i];
        double wait = results_has_mean(result) ? result->times.wait_mean : 0.0;
        most = fmax(most, wait + result->times.service_mean);
    }
    double step = figure_step(most, 6);
    most = fmax(step, ceil(most / step) * step);
    int height = (int)report->result_count * BAR_STEP + 36;
    figure_legend(file, classes, names, 3);
    figure_open(file, height, "mean time to first token by policy");
    figure_grid(file, most, step, height, false);
    for (size_t i = 0; i < report->result_count; i++) {
        const replay_result *result = &report->results[i];
        const replay_times *times = &result->times;
        bool stable = results_has_mean(result);
        double blocked = fmin(times->blocked_mean, times->service_mean);
        double parts[3] = {stable ? times->wait_mean : 0.0, blocked, times->service_mean - blocked};
        char sum[RESULTS_TEXT_BYTES];
        int y = 10 + (int)i * BAR_STEP;
        results_format_seconds(stable ? times->ttft_mean : NAN, sum);
        figure_label(report, i, y, file);
        figure_bar(file, y, parts, classes, 3, most, stable ? sum : "the queue grows: no mean");
    }
    fprintf(file, "</svg>\n");
}

void page_bars_hits(const replay_report *report, FILE *file)
{
    static const char *const classes[] = {"hbm", "dram", "ssd"};
    static const char *const names[] = {"in HBM", "in DRAM", "on SSD"};
    double most = 0.0;
    for (size_t i = 0; i < report->result_count; i++) {
        most = fmax(most, report->results[i].hit_token_ratio[0]);
    }
    double step = figure_step(fmax(most, 0.01), 6);
    most = fmax(step, ceil(most / step) * step);
    int height = (int)report->result_count * BAR_STEP + 36;
    figure_legend(file, classes, names, 3);
    figure_open(file, height, "tokens found by tier and policy");
    figure_grid(file, most, step, height, true);
    for (size_t i = 0; i < report->result_count; i++) {
        const replay_result *result = &report->results[i];
        char sum[RESULTS_TEXT_BYTES];
        int y = 10 + (int)i * BAR_STEP;
        snprintf(sum, sizeof sum, "%.1f %%", result->hit_token_ratio[0] * 100.0);
        figure_label(report, i, y, file);
        figure_bar(file, y, &result->hit_token_ratio[1], classes, 3, most, sum);
    }
    fprintf(file, "</svg>\n");
}

/* Decades that hold every plotted TTFT. */
static void curves_range(const replay_report *report, double *low_out, double *high_out)
{
    double low = 1e9, high = 1e-6;
    for (size_t i = 0; i < report->result_count; i++) {
        const double *cdf = report->results[i].times.ttft_cdf;
        low = fmin(low, fmax(cdf[1], 1e-6));
        high = fmax(high, cdf[REPLAY_CDF_POINTS - 1]);
    }
    *low_out = floor(log10(fmin(low, high)));
    *high_out = ceil(log10(high));
    if (*high_out <= *low_out) *high_out = *low_out + 1.0;
}

void page_curves_ttft(const replay_report *report, FILE *file)
{
    const int left = 60, right = 20, top = 10, bottom = 300, height = 330;
    const double width = FIGURE_WIDTH - left - right;
    double low, high;
    curves_range(report, &low, &high);
    fprintf(file, "<p class=\"legend\">");
    for (size_t i = 0; i < report->result_count; i++) {
        char label[64];
        page_label(report, i, label, sizeof label);
        fprintf(file, "<span><i style=\"background:%s\"></i>", page_colour(i));
        page_text(file, label);
        fprintf(file, "</span>");
    }
    fprintf(file, "</p>\n");
    figure_open(file, height, "share of requests by time to first token");
    for (int percent = 0; percent <= 100; percent += 25) {
        double y = bottom - (bottom - top) * percent / 100.0;
        fprintf(file,
                "<line class=\"grid\" x1=\"%d\" y1=\"%.1f\" x2=\"%d\" y2=\"%.1f\"/>"
                "<text class=\"tick\" x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%d %%</text>\n",
                left, y, FIGURE_WIDTH - right, y, left - 8, y + 4, percent);
    }
    for (double decade = low; decade <= high + 0.01; decade += 1.0) {
        char text[RESULTS_TEXT_BYTES];
        double x = left + width * (decade - low) / (high - low);
        fprintf(file,
                "<line class=\"grid\" x1=\"%.1f\" y1=\"%d\" x2=\"%.1f\" y2=\"%d\"/>"
                "<text class=\"tick\" x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%s</text>\n",
                x, top, x, bottom, x, bottom + 20, results_format_seconds(pow(10.0, decade), text));
    }
    for (size_t i = 0; i < report->result_count; i++) {
        const double *cdf = report->results[i].times.ttft_cdf;
        fprintf(file, "<polyline class=\"curve\" style=\"stroke:%s\" points=\"", page_colour(i));
        for (uint32_t j = 0; j < REPLAY_CDF_POINTS; j++) {
            double at = (log10(fmax(cdf[j], 1e-6)) - low) / (high - low);
            fprintf(file, "%.1f,%.1f ", left + width * fmin(fmax(at, 0.0), 1.0),
                    bottom - (bottom - top) * (double)j / (REPLAY_CDF_POINTS - 1));
        }
        fprintf(file, "\"/>\n");
    }
    fprintf(file, "</svg>\n");
}
