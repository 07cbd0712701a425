/* SPDX-License-Identifier: Apache-2.0 */
/*
 * profile_plot.c - see profile_plot.h: which plots a document has, drawing them, and putting them
 * into a page. One thread.
 *
 * gnuplot runs in the folder of its script, without the user's start-up file. An SVG that goes into
 * a page gets ids of its own, because all of gnuplot's plots have the same ones.
 */
#include "profile_plot.h"

#include "profile_document.h"
#include "profile_plot_script.h"
#include "replay/report_page.h"

#include <errno.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

#define PLOT_WIDTH      640
#define PLOT_HEIGHT     420
#define PLOT_WIDE       920
#define PLOT_PATH_BYTES 4096u

typedef bool plot_visit(void *context, const profile_plot *plot);

/* ---- which there are ---- */

/* A name for files: letters, digits, '-' and '_' of the text. */
static void plot_name(profile_plot *plot, const char *kind, const char *text, size_t number)
{
    int used = snprintf(plot->name, sizeof plot->name, "%s-%zu-", kind, number);
    size_t at = used < 0 ? 0 : (size_t)used;
    for (; *text != '\0' && at + 1 < sizeof plot->name; text++) {
        bool plain = (*text >= 'a' && *text <= 'z') || (*text >= 'A' && *text <= 'Z') ||
                     (*text >= '0' && *text <= '9');
        plot->name[at++] = plain ? *text : '_';
    }
    plot->name[at] = '\0';
}

static bool plot_visit_devices(const json_t *document, plot_visit *visit, void *context)
{
    const json_t *device;
    size_t i;
    static const char *const parts[] = {"read", "write"};
    json_array_foreach(json_object_get(document, "devices"), i, device)
    {
        profile_plot plot = {.width = PLOT_WIDTH,
                             .height = PLOT_HEIGHT,
                             .document = document,
                             .subject = device,
                             .draw = script_draw_bandwidth};
        plot_name(&plot, "bandwidth", view_text(device, "device"), i + 1);
        (void)snprintf(
            plot.caption, sizeof plot.caption,
            "%s: bandwidth by request size and requests in flight; bars from the slowest "
            "to the fastest repetition",
            view_text(device, "device"));
        if (json_array_size(json_object_get(device, "points")) > 0 && !visit(context, &plot)) {
            return false;
        }
    }
    for (int part = 0; part < 2; part++) {
        profile_plot plot = {.width = PLOT_WIDTH,
                             .height = PLOT_HEIGHT,
                             .document = document,
                             .part = parts[part],
                             .draw = script_draw_latency};
        plot_name(&plot, "latency", parts[part], (size_t)part + 1);
        (void)snprintf(
            plot.caption, sizeof plot.caption,
            "one %s at a time: measured medians, bars up to the 99th percentile, and the "
            "affine model as a line",
            parts[part]);
        if (script_has_latencies(document, parts[part]) && !visit(context, &plot)) return false;
    }
    return true;
}

static bool plot_visit_loads(const json_t *document, plot_visit *visit, void *context)
{
    const json_t *table;
    size_t i;
    if (json_array_size(json_object_get(document, "devices")) == 0) return true;
    json_array_foreach(json_object_get(document, "load"), i, table)
    {
        profile_plot plot = {.width = PLOT_WIDE,
                             .height = PLOT_HEIGHT,
                             .document = document,
                             .subject = table,
                             .draw = script_draw_load};
        plot_name(&plot, "load", "", i + 1);
        (void)snprintf(plot.caption, sizeof plot.caption,
                       "raw KV of %.0f bytes a token: where a device's line is below a dashed one, "
                       "loading is faster than computing",
                       view_number(table, "token_bytes", 0));
        if (!visit(context, &plot)) return false;
    }
    return true;
}

static bool plot_visit_codecs(const json_t *document, plot_visit *visit, void *context)
{
    const json_t *codec;
    const char *source = "";
    size_t i, number = 0;
    json_array_foreach(json_object_get(document, "codecs"), i, codec)
    {
        if (strcmp(source, view_text(codec, "source")) == 0 ||
            view_number(codec, "imported", 0) > 0) {
            continue;
        }
        source = view_text(codec, "source");
        profile_plot plot = {.width = PLOT_WIDE,
                             .height = 620,
                             .document = document,
                             .part = source,
                             .draw = script_draw_codecs};
        plot_name(&plot, "codecs", source, ++number);
        (void)snprintf(plot.caption, sizeof plot.caption,
                       "speed through a record, checksums included, on %s; x2: two threads",
                       strcmp(source, "sample") == 0 ? "generated KV" : source);
        if (!visit(context, &plot)) return false;
    }
    return true;
}

static bool plot_visit_quality(const json_t *document, plot_visit *visit, void *context)
{
    const json_t *set;
    size_t i;
    json_array_foreach(json_object_get(document, "quality_sets"), i, set)
    {
        if (!script_has_loss(set)) continue;
        profile_plot plot = {.width = PLOT_WIDTH,
                             .height = PLOT_HEIGHT,
                             .document = document,
                             .subject = set,
                             .draw = script_draw_loss};
        plot_name(&plot, "loss", view_text(set, "model"), i + 1);
        (void)snprintf(
            plot.caption, sizeof plot.caption,
            "%s on %s (%s): mean loss with its 95 %% interval (to the axis where it reaches "
            "0); lines join a family's best",
            view_text(set, "model"), view_text(set, "class"), view_text(set, "method"));
        if (!visit(context, &plot)) return false;
    }
    return true;
}

static bool plot_visit_section(const json_t *document, profile_plot_section section,
                               plot_visit *visit, void *context)
{
    switch (section) {
    case PROFILE_PLOT_DEVICES: return plot_visit_devices(document, visit, context);
    case PROFILE_PLOT_LOADS: return plot_visit_loads(document, visit, context);
    case PROFILE_PLOT_CODECS: return plot_visit_codecs(document, visit, context);
    case PROFILE_PLOT_QUALITY: return plot_visit_quality(document, visit, context);
    }
    return true;
}

/* ---- drawing ---- */

static void plot_script(const profile_plot *plot, bool picture, FILE *script)
{
    fprintf(script, "# gnuplot %s.gp\n", plot->name);
    fprintf(script,
            "set terminal svg size %d,%d dynamic noenhanced font 'sans-serif,13' "
            "background rgb '#ffffff'\nset output '%s.svg'\n",
            plot->width, plot->height, plot->name);
    plot->draw(plot, script);
    if (!picture) return;
    fprintf(script,
            "if (strstrt(GPVAL_TERMINALS, ' pngcairo ') > 0) {\n"
            "    set terminal pngcairo size %d,%d noenhanced font 'sans,10'\n"
            "    set output '%s.png'\n    replot\n}\n",
            plot->width, plot->height, plot->name);
}

/* Runs gnuplot on a script of `folder`; what it complains about goes to stderr, or nowhere. */
static bool plot_run(const char *folder, const char *script, bool quiet)
{
    char option[] = "-d", program[] = "gnuplot", path[PLOT_NAME_BYTES + 8];
    char *arguments[] = {program, option, path, NULL};
    posix_spawn_file_actions_t actions;
    pid_t child;
    int result = -1;
    (void)snprintf(path, sizeof path, "%s", script);
    if (posix_spawn_file_actions_init(&actions) != 0) return false;
    bool ready = posix_spawn_file_actions_addchdir_np(&actions, folder) == 0 &&
                 posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", 0, 0) == 0 &&
                 posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", 1, 0) == 0;
    if (ready && quiet) {
        ready = posix_spawn_file_actions_addopen(&actions, 2, "/dev/null", 1, 0) == 0;
    }
    if (ready) ready = posix_spawnp(&child, program, &actions, NULL, arguments, environ) == 0;
    posix_spawn_file_actions_destroy(&actions);
    while (ready && waitpid(child, &result, 0) < 0) {
        if (errno != EINTR) return false;
    }
    return ready && WIFEXITED(result) && WEXITSTATUS(result) == 0;
}

bool profile_plot_available(void)
{
    static int known = -1;
    if (known < 0) known = plot_run(".", "--version", true) ? 1 : 0;
    return known == 1;
}

typedef struct plot_target {
    const char *folder;
    FILE *page;       /* NULL: files stay in the folder */
    unsigned *number; /* of plots in the page */
    kvt_status status;
    char *message;
    size_t message_size;
} plot_target;

static FILE *plot_file(const char *folder, const char *name, const char *ending, const char *mode)
{
    char path[PLOT_PATH_BYTES];
    int length = snprintf(path, sizeof path, "%s/%s.%s", folder, name, ending);
    return length < 0 || (size_t)length >= sizeof path ? NULL : fopen(path, mode);
}

static bool plot_write_script(const profile_plot *plot, plot_target *target)
{
    FILE *script = plot_file(target->folder, plot->name, "gp", "w");
    bool written = false;
    if (script != NULL) {
        plot_script(plot, target->page == NULL, script);
        written = !ferror(script);
        if (fclose(script) != 0) written = false;
    }
    if (!written) {
        target->status = KVT_E_IO;
        (void)snprintf(target->message, target->message_size, "%s/%s.gp: %s", target->folder,
                       plot->name, strerror(errno));
    }
    return written;
}

/* Copies the SVG without its XML declaration; its ids get the plot's number. */
static void plot_copy(FILE *svg, unsigned number, FILE *page)
{
    static const char *const marks[] = {"gpDot", "gpPt", "gnuplot_", "textbox", "greybox"};
    char line[8192];
    bool begun = false;
    while (fgets(line, sizeof line, svg) != NULL) {
        const char *at = line;
        if (!begun) {
            at = strstr(line, "<svg");
            if (at == NULL) continue;
            begun = true;
        }
        for (; *at != '\0'; at++) {
            for (size_t i = 0; i < sizeof marks / sizeof marks[0]; i++) {
                const char before = at > line ? at[-1] : ' ';
                bool id = before == '\'' || before == '"' || before == '#';
                if (id && strncmp(at, marks[i], strlen(marks[i])) == 0) {
                    fprintf(page, "p%u", number);
                }
            }
            fputc(*at, page);
        }
    }
}

static void plot_into_page(const profile_plot *plot, plot_target *target)
{
    FILE *svg = plot_file(target->folder, plot->name, "svg", "r");
    if (svg == NULL) return;
    fprintf(target->page, "<figure%s>\n", plot->width > PLOT_WIDTH ? " class=\"broad\"" : "");
    plot_copy(svg, ++*target->number, target->page);
    fprintf(target->page, "<figcaption>");
    page_text(target->page, plot->caption);
    fprintf(target->page, "</figcaption></figure>\n");
    (void)fclose(svg);
}

static void plot_remove(const profile_plot *plot, const char *folder)
{
    static const char *const endings[] = {"gp", "svg"};
    for (size_t i = 0; i < 2; i++) {
        char path[PLOT_PATH_BYTES];
        int length = snprintf(path, sizeof path, "%s/%s.%s", folder, plot->name, endings[i]);
        if (length > 0 && (size_t)length < sizeof path) (void)unlink(path);
    }
}

static bool plot_draw(void *context, const profile_plot *plot)
{
    plot_target *target = context;
    char script[PLOT_NAME_BYTES + 8];
    if (!plot_write_script(plot, target)) return false;
    (void)snprintf(script, sizeof script, "%s.gp", plot->name);
    bool drawn = profile_plot_available() && plot_run(target->folder, script, target->page != NULL);
    if (target->page != NULL) {
        if (drawn) plot_into_page(plot, target);
        plot_remove(plot, target->folder);
    } else if (!drawn) {
        target->status = profile_plot_available() ? KVT_E_IO : KVT_E_UNSUPPORTED;
        (void)snprintf(target->message, target->message_size,
                       profile_plot_available() ? "gnuplot failed on %s/%s.gp"
                                                : "gnuplot is not installed; %s/%s.gp and the "
                                                  "other scripts are written",
                       target->folder, plot->name);
    }
    return target->status == KVT_OK || target->status == KVT_E_UNSUPPORTED;
}

kvt_status profile_plot_write(const json_t *document, const char *folder, char *message,
                              size_t message_size)
{
    plot_target target = {
        .folder = folder, .status = KVT_OK, .message = message, .message_size = message_size};
    if (mkdir(folder, 0777) != 0 && errno != EEXIST) {
        (void)snprintf(message, message_size, "%.300s: %s", folder, strerror(errno));
        return KVT_E_IO;
    }
    for (int section = PROFILE_PLOT_DEVICES; section <= PROFILE_PLOT_QUALITY; section++) {
        if (!plot_visit_section(document, (profile_plot_section)section, plot_draw, &target)) break;
    }
    return target.status;
}

kvt_status profile_plot_inline(const json_t *document, profile_plot_section section,
                               unsigned *number, FILE *page)
{
    char folder[] = P_tmpdir "/kvterrace-plot-XXXXXX", message[PLOT_PATH_BYTES];
    plot_target target = {.folder = folder,
                          .page = page,
                          .number = number,
                          .status = KVT_OK,
                          .message = message,
                          .message_size = sizeof message};
    if (!profile_plot_available()) return KVT_OK;
    if (mkdtemp(folder) == NULL) return KVT_E_IO;
    fprintf(page, "<div class=\"figures\">\n");
    (void)plot_visit_section(document, section, plot_draw, &target);
    fprintf(page, "</div>\n");
    (void)rmdir(folder);
    return target.status;
}
