/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_drive_control.c - the control file and the keeper process of an emulated drive; see
 * bench_drive_control.h.
 *
 * Thread rule: as bench_drive_control.h.
 */
#include "bench_drive_control.h"

#include "base/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { CONTROL_TRIES = 500 }; /* times 10 ms */

/* The drive's folder with an ending: "/control", ".pid". */
static bool control_path(const char *path, const char *ending, char out[PATH_MAX])
{
    const char *slash = strrchr(path, '/');
    if (slash == NULL) return false;
    int length = snprintf(out, PATH_MAX, "%.*s%s", (int)(slash - path), path, ending);
    return length > 0 && length < PATH_MAX;
}

static bool control_complain(const char *path, const char *what)
{
    fprintf(stderr, "kvterrace bench: drive %s: %s: %s\n", path, what, strerror(errno));
    return false;
}

double bench_drive_rate(const char *path)
{
    char name[PATH_MAX], line[256];
    double rate = 0;
    if (path == NULL || !control_path(path, "/control", name)) return 0;
    FILE *file = fopen(name, "re");
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        if (strncmp(line, "rate=", 5) == 0) rate = strtod(line + 5, NULL);
    }
    if (file != NULL) (void)fclose(file);
    return rate;
}

bool bench_drive_set_rate(const char *path, double bytes_per_s)
{
    char name[PATH_MAX], text[64];
    int length = snprintf(text, sizeof text, "rate=%.0f\n", bytes_per_s);
    int fd = control_path(path, "/control", name) ? open(name, O_WRONLY | O_CLOEXEC) : -1;
    if (fd < 0) return control_complain(path, "no control");
    bool written = write(fd, text, (size_t)length) == length;
    if (close(fd) != 0 || !written) return control_complain(path, "does not take its rate");
    return true;
}

/* Signals the keeper and waits until the drive is there, or is not. */
static bool control_signal(const char *path, int signal_number, bool there)
{
    char name[PATH_MAX];
    long pid = 0;
    FILE *file = control_path(path, ".pid", name) ? fopen(name, "re") : NULL;
    if (file == NULL) return control_complain(path, "has no keeper");
    if (fscanf(file, "%ld", &pid) != 1) pid = 0;
    (void)fclose(file);
    if (pid <= 1 || kill((pid_t)pid, signal_number) != 0)
        return control_complain(path, "its keeper cannot be signalled");
    for (int i = 0; i < CONTROL_TRIES; i++) {
        if ((bench_drive_rate(path) > 0) == there) return true;
        base_sleep(10000000);
    }
    errno = ETIMEDOUT;
    return control_complain(path, there ? "does not come back" : "does not go");
}

bool bench_drive_vanish(const char *path)
{
    return control_signal(path, SIGUSR1, false);
}

bool bench_drive_return(const char *path)
{
    return control_signal(path, SIGUSR2, true);
}
