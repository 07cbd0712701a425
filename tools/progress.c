/* SPDX-License-Identifier: Apache-2.0 */
/*
 * progress.c - one line on a terminal that says how far a long command is, and how long it will
 * take from here. One thread.
 */
#include "base/clock.h"
#include "command.h"

#include <unistd.h>

#define PROGRESS_CELLS    24u
#define PROGRESS_STEP_NS  UINT64_C(100000000)
#define PROGRESS_QUIET_NS UINT64_C(2000000000) /* so long nothing is said of what is left */

void progress_start(command_progress *progress, const command_common *common)
{
    *progress = (command_progress){.shown = !common->quiet && isatty(STDERR_FILENO) == 1,
                                   .started_ns = base_clock_ns()};
}

/* "3 min 20 s left", as if the rest went like what is done; "" where that cannot be said yet. */
static const char *progress_left(char text[32], double done, uint64_t elapsed_ns)
{
    text[0] = '\0';
    if (elapsed_ns < PROGRESS_QUIET_NS || !(done > 0.005)) return text;
    const double seconds = (double)elapsed_ns * 1e-9 * (1 - done) / done;
    if (seconds < 60) {
        (void)snprintf(text, 32, "%.0f s left", seconds);
    } else if (seconds < 3600) {
        const unsigned whole = (unsigned)seconds;
        (void)snprintf(text, 32, "%u min %02u s left", whole / 60, whole % 60);
    } else {
        (void)snprintf(text, 32, "%.1f h left", seconds / 3600);
    }
    return text;
}

void progress_end(command_progress *progress)
{
    if (progress->drawn) fputs("\r\033[K", stderr);
    progress->drawn = false;
}

void progress_update(command_progress *progress, double done, const char *what)
{
    char cells[PROGRESS_CELLS + 1], left[32];
    if (!progress->shown) return;
    if (done >= 1 && what == NULL) {
        progress_end(progress);
        return;
    }
    const uint64_t now = base_clock_ns();
    if (progress->drawn && now - progress->drawn_ns < PROGRESS_STEP_NS) return;
    if (!(done >= 0)) done = 0;
    if (done > 1) done = 1;
    progress->drawn = true;
    progress->drawn_ns = now;
    for (unsigned i = 0; i < PROGRESS_CELLS; i++)
        cells[i] = i < done * PROGRESS_CELLS ? '#' : '.';
    cells[PROGRESS_CELLS] = '\0';
    fprintf(stderr, "\r\033[K[%s] %3.0f%% %s %.32s", cells, done * 100,
            progress_left(left, done, now - progress->started_ns), what != NULL ? what : "");
    fflush(stderr);
}

void progress_show(void *context, double done, const char *what)
{
    progress_update(context, done, what);
}

bool progress_ask(void *context, double done, const char *what)
{
    progress_update(context, done, what);
    return !command_interrupted();
}
