/* SPDX-License-Identifier: Apache-2.0 */
/*
 * processors.c - how much of the processors other programs take while figures are made by the
 * clock. One thread.
 */
#include "command.h"

#include <inttypes.h>
#include <stdio.h>
#include <sys/resource.h>
#include <unistd.h>

#define OTHERS_SHARE 0.1 /* of the processors' time, from which on others are named */

static double seconds_of(struct timeval time)
{
    return (double)time.tv_sec + 1e-6 * (double)time.tv_usec;
}

void command_others_begin(command_processors *load)
{
    struct rusage own, children;
    uint64_t ticks[8] = {0}; /* user, nice, system, idle, iowait, irq, softirq, steal */
    FILE *file = fopen("/proc/stat", "re");
    *load = (command_processors){0};
    if (file == NULL) return;
    const int read = fscanf(file,
                            "cpu %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64
                            " %" SCNu64 " %" SCNu64 " %" SCNu64,
                            &ticks[0], &ticks[1], &ticks[2], &ticks[3], &ticks[4], &ticks[5],
                            &ticks[6], &ticks[7]);
    fclose(file);
    if (read != 8) return;
    const double tick = 1.0 / (double)sysconf(_SC_CLK_TCK);
    for (int i = 0; i < 8; i++) {
        load->all += (double)ticks[i] * tick;
        if (i != 3 && i != 4) load->taken += (double)ticks[i] * tick;
    }
    (void)getrusage(RUSAGE_SELF, &own);
    (void)getrusage(RUSAGE_CHILDREN, &children);
    load->own = seconds_of(own.ru_utime) + seconds_of(own.ru_stime) +
                seconds_of(children.ru_utime) + seconds_of(children.ru_stime);
}

double command_others_end(const command_processors *begin, const command_common *common)
{
    command_processors end;
    command_others_begin(&end);
    const double all = end.all - begin->all;
    if (begin->all <= 0.0 || !(all > 0.0)) return 0.0;
    const double others = (end.taken - begin->taken - (end.own - begin->own)) / all;
    if (others < OTHERS_SHARE) return others > 0.0 ? others : 0.0;
    command_note(common,
                 "other programs took %.0f %% of this machine's processors meanwhile: times by the "
                 "clock are too long by what that cost",
                 100.0 * others);
    return others;
}
