/* SPDX-License-Identifier: Apache-2.0 */
/*
 * progress.c - one line on a terminal that says how far a long command is. One thread.
 */
#include "base/clock.h"
#include "command.h"

#include <unistd.h>

#define PROGRESS_CELLS   30u
#define PROGRESS_STEP_NS UINT64_C(100000000)

void progress_start(command_progress *progress, const command_common *common)
{
    *progress = (command_progress){.shown = !common->quiet && isatty(STDERR_FILENO) == 1};
}

void progress_update(command_progress *progress, double done, const char *what)
{
    if (!progress->shown) return;
    uint64_t now = base_clock_ns();
    if (progress->drawn && now - progress->drawn_ns < PROGRESS_STEP_NS) return;
    if (!(done >= 0)) done = 0;
    if (done > 1) done = 1;
    progress->permille = (unsigned)(done * 1000);
    progress->drawn = true;
    progress->drawn_ns = now;
    char cells[PROGRESS_CELLS + 1];
    for (unsigned i = 0; i < PROGRESS_CELLS; i++) {
        cells[i] = i * 1000 < progress->permille * PROGRESS_CELLS ? '#' : '.';
    }
    cells[PROGRESS_CELLS] = '\0';
    fprintf(stderr, "\r\033[K[%s] %3u%% %.44s", cells, progress->permille / 10, what);
    fflush(stderr);
}

void progress_end(command_progress *progress)
{
    if (progress->drawn) fputs("\r\033[K", stderr);
    progress->drawn = false;
}
