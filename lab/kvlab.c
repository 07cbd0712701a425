/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvlab.c - the program of the evidence: how a case is run, on which devices, and what an
 * interruption does; kvlab_cases.c has the cases.
 *
 * Most cases run in a process of their own. A measurement looks at no flag between two requests,
 * and one that waits for a device could not: another process ends it and cleans up behind it. The
 * others end between two runs and print what was finished. Which devices may be overwritten is
 * decided as for profile: see device_list.h. One thread.
 */
#include "kvlab.h"

#include "base/config_values.h"
#include "lab/bench/bench_parts.h"
#include "tools/command/device_list.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* What tests/support/drives writes. Only root can, so nobody else chooses what is overwritten. */
#define LAB_DRIVES "/run/kvterrace-drives/drives.ini"

/* ---- a process of its own ---- */

/* The child: signals act as before, and it ends with its parent. */
static void guard_begin(const sigset_t *before, pid_t parent)
{
    (void)signal(SIGINT, SIG_DFL);
    (void)signal(SIGTERM, SIG_DFL);
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(EXIT_FAILED);
    (void)sigprocmask(SIG_SETMASK, before, NULL);
}

/* Signals that come between two looks at the flag stay blocked until sigsuspend. */
static int guard_wait(pid_t child, const sigset_t *before)
{
    int status = 0;
    pid_t ended;
    while ((ended = waitpid(child, &status, WNOHANG)) == 0) {
        if (command_interrupted()) {
            (void)kill(child, SIGKILL);
            ended = waitpid(child, &status, 0);
            break;
        }
        (void)sigsuspend(before);
    }
    bench_scratch_remove();
    if (command_interrupted()) {
        if (isatty(STDERR_FILENO) == 1) fputs("\r\033[K", stderr); /* the child's bar */
        return command_finish(command_fail(KVT_E_CANCELLED, "interrupted"));
    }
    if (ended == child && WIFEXITED(status)) return WEXITSTATUS(status);
    if (ended == child && WIFSIGNALED(status))
        fprintf(stderr, "kvlab: signal %d ended it\n", WTERMSIG(status));
    return EXIT_FAILED;
}

static void guard_child_ended(int number)
{
    (void)number;
}

/* Forks. False in the child, which runs the case; true in the process that waited for it, with the
 * exit code to leave with. SIGINT or SIGTERM kills the child, removes its scratch folder, and gives
 * EXIT_INTERRUPTED. Call it before there are threads. */
static bool lab_guard(bool json, int *code_out)
{
    const struct sigaction ended = {.sa_handler = guard_child_ended};
    const pid_t self = getpid();
    sigset_t watched, before;
    (void)json;
    sigemptyset(&watched);
    sigaddset(&watched, SIGINT);
    sigaddset(&watched, SIGTERM);
    sigaddset(&watched, SIGCHLD);
    (void)sigprocmask(SIG_BLOCK, &watched, &before);
    (void)sigaction(SIGCHLD, &ended, NULL);
    command_catch_interrupts();
    pid_t child = -1;
    if (bench_scratch_share() == 0) {
        (void)fflush(NULL);
        child = fork();
    }
    if (child == 0) {
        (void)signal(SIGCHLD, SIG_DFL);
        guard_begin(&before, self);
        return false;
    }
    *code_out = child > 0 ? guard_wait(child, &before) : command_fail(KVT_E_MEMORY, "");
    (void)sigprocmask(SIG_SETMASK, &before, NULL);
    return true;
}

/* ---- one case ---- */

int lab_take_drives(void *context)
{
    command_common *common = context;
    if (common->files.count == 0 && common->settings.count == 0 && access(LAB_DRIVES, R_OK) == 0)
        command_list_add(&common->files, LAB_DRIVES);
    return EXIT_FINE;
}

/* A folder for test files that is not there is the user's mistake. */
static int lab_check_folder(const char *folder)
{
    struct stat facts;
    char message[COMMAND_MESSAGE_BYTES];
    if (folder == NULL) return EXIT_FINE;
    const int reason = stat(folder, &facts) != 0 ? errno : S_ISDIR(facts.st_mode) ? 0 : ENOTDIR;
    if (reason == 0) return EXIT_FINE;
    (void)snprintf(message, sizeof message, "--directory: %.300s: %s", folder, strerror(reason));
    return command_fail(KVT_E_CONFIG, message);
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
    int code = lab_check_folder(options->scratch_folder);
    if (code == EXIT_FINE && arguments->one.prepare != NULL)
        code = arguments->one.prepare(arguments);
    if (code != EXIT_FINE) return code;
    options->quiet = arguments->common.quiet;
    options->progress = lab_show;
    options->progress_context = arguments;
    if (arguments->common.spec->own_guard) command_catch_interrupts();
    progress_start(&arguments->bar, &arguments->common);
    const kvt_status status = bench_case_run(arguments->one.bench, options, stdout,
                                             arguments->common.json, message, sizeof message);
    progress_end(&arguments->bar);
    free(arguments->names.items);
    if (status == KVT_OK) return EXIT_FINE;
    if (status == KVT_E_CANCELLED) return command_fail(status, "interrupted");
    /* Cases with options of their own read files that the user named. */
    return arguments->one.prepare != NULL ? command_fail_content(status, message)
                                          : command_fail(status, message);
}

/* Runs over the configured devices, or those of SSD tiers alone; without any the case makes its
 * own. */
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
    if (arguments->one.devices == DEVICES_OWN) return lab_start(arguments);
    if (kvt_config_device_at(arguments->common.config, 0))
        status = device_list_make(arguments->common.config, ".", 0, &list, message, sizeof message);
    int code = status == KVT_OK ? command_report_unused(&arguments->common, sections)
                                : command_fail(status, message);
    for (size_t i = 0; i < list.count && code == EXIT_FINE; i++) {
        const device_item *item = &list.items[i];
        if (arguments->one.devices == DEVICES_SSD && item->tier != KVT_TIER_SSD) continue;
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
                 "published methods. An interruption removes what the case made.",
        .commands = lab_commands,
        .guard = lab_guard,
        .example = "  kvlab codecs --quick",
    };
    return command_main(&kvlab, argc, argv);
}
