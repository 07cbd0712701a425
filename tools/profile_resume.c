/* SPDX-License-Identifier: Apache-2.0 */
/*
 * profile_resume.c - see profile_resume.h. One thread.
 *
 * A command measures the devices of its list in order and then the codecs, each in a run of its
 * own. So the runs of one invocation, from the newest back, have falling places in that order;
 * where the place does not fall, an earlier invocation begins.
 */
#include "profile_resume.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

typedef struct resume_run {
    size_t place; /* of its device in the list; list->count for codecs */
    bool complete;
    char identity[96];
} resume_run;

#define RESUME_RUNS (DEVICE_LIST_MAX + 1u)

typedef struct resume_search {
    const device_list *list;
    const char *command_line;
    char oldest[32];              /* started_utc of the oldest that counts */
    resume_run runs[RESUME_RUNS]; /* a ring of the newest */
    size_t count;
} resume_search;

static const char *resume_column(const kvt_profile_cell *cells, size_t count, const char *column)
{
    for (size_t i = 0; i < count; i++) {
        if (strcmp(cells[i].column, column) == 0 && cells[i].kind == KVT_CELL_TEXT) {
            return cells[i].text;
        }
    }
    return "";
}

static bool resume_is_complete(const kvt_profile_cell *cells, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (strcmp(cells[i].column, "complete") == 0) return cells[i].integer != 0;
    }
    return false;
}

static bool resume_row(void *context, const char *table, const kvt_profile_cell *cells,
                       size_t count)
{
    (void)table;
    resume_search *search = context;
    const char *device = resume_column(cells, count, "device");
    const char *kind = resume_column(cells, count, "kind");
    if (strcmp(resume_column(cells, count, "command_line"), search->command_line) != 0 ||
        strcmp(resume_column(cells, count, "started_utc"), search->oldest) < 0) {
        return true;
    }
    size_t place = search->list->count;
    for (size_t i = 0; i < search->list->count; i++) {
        if (strcmp(search->list->items[i].config.name, device) == 0) place = i;
    }
    if (place == search->list->count && strcmp(kind, "codecs") != 0) return true;
    resume_run *run = &search->runs[search->count++ % RESUME_RUNS];
    run->place = place;
    run->complete = resume_is_complete(cells, count);
    (void)snprintf(run->identity, sizeof run->identity, "%s",
                   resume_column(cells, count, "identity"));
    return true;
}

static void resume_mark(const resume_search *search, bool codecs_too, profile_done *done)
{
    const size_t kept = search->count < RESUME_RUNS ? search->count : RESUME_RUNS;
    if (kept == 0) return;
    const resume_run *last = &search->runs[(search->count - 1) % RESUME_RUNS];
    const size_t final = codecs_too ? search->list->count : search->list->count - 1;
    if (last->complete && last->place == final) return;
    size_t below = SIZE_MAX;
    for (size_t i = 1; i <= kept; i++) {
        const resume_run *run = &search->runs[(search->count - i) % RESUME_RUNS];
        if (run->place >= below) break;
        below = run->place;
        if (!run->complete || run->place == search->list->count) continue;
        done[run->place].complete = true;
        memcpy(done[run->place].identity, run->identity, sizeof run->identity);
    }
}

kvt_status profile_resume_find(kvt_profile *profile, const device_list *list,
                               const char *command_line, bool codecs_too, double max_age_seconds,
                               profile_done *done)
{
    resume_search search = {.list = list, .command_line = command_line};
    const time_t oldest = time(NULL) - (time_t)max_age_seconds;
    struct tm utc;
    if (list->count == 0) return KVT_OK;
    if (gmtime_r(&oldest, &utc) == NULL ||
        strftime(search.oldest, sizeof search.oldest, "%Y-%m-%dT%H:%M:%SZ", &utc) == 0) {
        return KVT_OK;
    }
    kvt_status status = kvt_profile_list(profile, "runs", resume_row, &search);
    if (status == KVT_OK) resume_mark(&search, codecs_too, done);
    return status;
}
