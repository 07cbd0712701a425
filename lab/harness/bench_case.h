/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_case.h - a case of kvlab: it measures and fills a report, which bench_case_run prints.
 *
 * Thread rule: one case at a time.
 */
#ifndef HARNESS_BENCH_CASE_H
#define HARNESS_BENCH_CASE_H

#include "bench_report.h"

#include <kvterrace/device.h>

typedef struct bench_options {
    bool quick;          /* one repetition of small work: shows that it runs, not how fast */
    bool quiet;          /* no notes on stderr */
    uint32_t iterations; /* repetitions; 0 = the case's default */

    /* What to measure on; none: the case makes its own. */
    const kvt_device_config *devices;
    const bool *overwrite; /* one per device: a file device's content may be lost. NULL = none may,
                              so file devices are only read */
    uint32_t device_count;
    uint32_t sequences;  /* pipeline: 0 = 4 */
    uint32_t compute_us; /* pipeline: of a layer and sequence; 0 = as the best method's
                                   fetch */
    uint32_t hit_percent, asked_percent; /* slack: of one case; 0 = all */
    bool mixing;                         /* slack: emulated drives with a loss alone */
    const char *decisions;               /* slack: a file for what drives decide, or NULL */
    const char *check;                   /* slack: such a file, whose lines are decided again */
    unsigned part;                       /* keep: BENCH_KEEP_*; 0 = all */
    const void *own;                     /* of cases with options of their own */

    /* Told of the share that is done, [0,1], and of what is at work, 1 before the results are
     * printed; or NULL. False ends a case that looks at it. */
    bool (*progress)(void *context, double done, const char *what);
    void *progress_context;
} bench_options;

/* Says to options->progress how many of the parts are done, and what comes next. False: the case is
 * to end. */
static inline bool bench_tell(const bench_options *options, double done, double parts,
                              const char *what)
{
    return options->progress == NULL ||
           options->progress(options->progress_context, parts > 0 ? done / parts : 0, what);
}

/* A note on stderr, unless options say quiet. */
void bench_note(const bench_options *options, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

typedef struct bench_case {
    const char *name;
    const char *schema;
    const document_table *tables; /* what of the document is printed as text */
    /* KVT_OK, or why it ended; what the report holds by then is printed. Blocking. */
    kvt_status (*run)(const bench_options *options, bench_report *report);
} bench_case;

/* Runs a case and prints what its report holds. `message` is why it failed, "" = as the status
 * says. KVT_E_IO: `out` cannot be written. */
KVT_NODISCARD kvt_status bench_case_run(const bench_case *one, const bench_options *options,
                                        FILE *out, bool json, char *message, size_t message_size);

#endif
