/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvlab.c - the program of the evidence: how a case is run, on which devices, and what an
 * interruption does; kvlab_cases.c has the cases.
 *
 * An interruption ends most cases at once; the others end between two runs and print what was
 * finished. Which devices may be overwritten is decided as for profile: see device_list.h. Cases
 * have one thread, and a second one waits for signals.
 */
#include "kvlab.h"

#include "lab/private.h"
#include "tools/command/device_list.h"

#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

/* What tests/support/drives writes. Only root can, so nobody else chooses what is overwritten. */
#define LAB_DRIVES "/run/kvterrace-drives/drives.ini"

static sem_t lab_interruptions;

static void lab_interrupt(int number)
{
    (void)number;
    (void)sem_post(&lab_interruptions);
}

/* A measurement looks at no flag between two requests, and one that waits for a device could not:
 * another thread ends the process. */
static void *lab_await_interrupt(void *context)
{
    (void)context;
    while (sem_wait(&lab_interruptions) != 0)
        ;
    if (isatty(STDERR_FILENO) == 1) fputs("\r\033[K", stderr); /* the bar */
    _exit(command_finish(command_fail(KVT_E_CANCELLED, "interrupted")));
}

static void lab_catch_interrupts(void)
{
    const struct sigaction action = {.sa_handler = lab_interrupt, .sa_flags = SA_RESTART};
    pthread_t thread;
    if (sem_init(&lab_interruptions, 0, 0) != 0 ||
        pthread_create(&thread, NULL, lab_await_interrupt, NULL) != 0)
        return; /* a signal ends the process without a word */
    (void)sigaction(SIGINT, &action, NULL);
    (void)sigaction(SIGTERM, &action, NULL);
}

/* ---- one case ---- */

int lab_take_drives(void *context)
{
    command_common *common = context;
    if (common->files.count == 0 && common->settings.count == 0 && access(LAB_DRIVES, R_OK) == 0)
        command_list_add(&common->files, LAB_DRIVES);
    return EXIT_FINE;
}

static bool lab_show(void *context, double done, const char *what)
{
    lab_arguments *arguments = context;
    return progress_ask(&arguments->bar, done, what);
}

static int lab_start(lab_arguments *arguments)
{
    char message[COMMAND_MESSAGE_BYTES] = "";
    bench_options *options = &arguments->options;
    const int code = arguments->one.prepare != NULL ? arguments->one.prepare(arguments) : EXIT_FINE;
    if (code != EXIT_FINE) return code;
    options->quiet = arguments->common.quiet;
    options->progress = lab_show;
    options->progress_context = arguments;
    if (arguments->one.ends_between_runs)
        command_catch_interrupts();
    else
        lab_catch_interrupts();
    command_processors processors;
    command_others_begin(&processors);
    progress_start(&arguments->bar, &arguments->common);
    const kvt_status status = bench_case_run(arguments->one.bench, options, stdout,
                                             arguments->common.json, message, sizeof message);
    progress_end(&arguments->bar);
    (void)command_others_end(&processors, &arguments->common);
    free(arguments->names.items);
    if (status == KVT_OK) return EXIT_FINE;
    if (status == KVT_E_CANCELLED) return command_fail(status, "interrupted");
    /* Cases with options of their own read files that the user named. */
    return arguments->one.prepare != NULL ? command_fail_content(status, message)
                                          : command_fail(status, message);
}

/* Runs over the configured devices of SSD tiers, where the case takes drives; without any it makes
 * its own. */
int lab_run(void *context)
{
    static const char *const sections[] = {"device.*", NULL};
    lab_arguments *arguments = context;
    bench_options *options = &arguments->options;
    kvt_device_config configs[DEVICE_LIST_MAX];
    bool overwrite[DEVICE_LIST_MAX];
    char message[COMMAND_MESSAGE_BYTES] = "";
    device_list list = {0};
    kvt_status status = KVT_OK;
    if (!arguments->one.drives) return lab_start(arguments);
    if (kvt_config_device_at(arguments->common.config, 0))
        status = device_list_make(arguments->common.config, ".", 0, &list, message, sizeof message);
    int code = status == KVT_OK ? command_report_unused(&arguments->common, sections)
                                : command_fail(status, message);
    for (size_t i = 0; i < list.count && code == EXIT_FINE; i++) {
        const device_item *item = &list.items[i];
        if (item->tier != KVT_TIER_SSD) continue;
        configs[options->device_count] = item->config;
        overwrite[options->device_count++] = item->overwrite;
    }
    options->devices = options->device_count > 0 ? configs : NULL;
    options->overwrite = options->device_count > 0 ? overwrite : NULL;
    if (code == EXIT_FINE) code = lab_start(arguments);
    device_list_free(&list);
    return code;
}

int main(int argc, char **argv)
{
    const command_spec kvlab = {
        .name = "kvlab",
        .about = "Measures parts of kvterrace beside this machine's own limits and beside "
                 "published methods.",
        .commands = lab_commands,
        .example = "  kvlab codecs --quick",
    };
    return command_main(&kvlab, argc, argv);
}
