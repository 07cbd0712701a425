/* SPDX-License-Identifier: Apache-2.0 */
/*
 * seal_keys.c - reads the master keys of a device: lines of 64 hexadecimal digits, the current key
 * first. Empty lines and lines that begin with # are skipped.
 *
 * Thread rule: any thread. A command runs as a child of the process, which waits for it alone.
 */
#include "seal.h"

#include "base/clock.h"
#include "base/hex.h"
#include "base/secret.h"
#include "tiers/devices/watchdog.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { KEYS_TEXT_BYTES = 4096, KEYS_COMMAND_SECONDS = 60 };

extern char **environ;

/* Takes one line. False: it is no key. */
static bool keys_take_line(const char *line, size_t length, uint8_t *key)
{
    return length == (size_t)2 * SEAL_KEY_BYTES && base_hex_read(line, key, SEAL_KEY_BYTES);
}

/* Takes all lines. NULL, or why not; *line_out is the line at fault. */
static const char *keys_parse(const char *text, seal_keys *out, uint32_t *line_out)
{
    out->count = 0;
    for (*line_out = 1; *text != '\0'; ++*line_out) {
        const size_t whole = strcspn(text, "\n");
        size_t length = whole;
        while (length > 0 && strchr(" \t\r", text[length - 1]) != NULL)
            length--;
        if (length > 0 && text[0] != '#') {
            if (out->count == SEAL_KEYS_MAX) return "there are more than 16 keys";
            uint8_t *key = out->keys[out->count];
            if (!keys_take_line(text, length, key))
                return "it is not 64 hexadecimal digits, a key of 256 bits";
            for (uint32_t i = 0; i < out->count; i++)
                if (memcmp(out->keys[i], key, SEAL_KEY_BYTES) == 0) return "the key is there twice";
            out->count++;
        }
        text += whole + (text[whole] == '\n' ? 1 : 0);
    }
    return out->count > 0 ? NULL : "there is no key";
}

/* Starts a command with its standard output into a pipe. 0, or an errno. */
static int keys_spawn(const char *command, pid_t *child, int *output)
{
    char shell[] = "sh", option[] = "-c";
    char *const arguments[] = {shell, option, (char *)(uintptr_t)command, NULL};
    posix_spawn_file_actions_t actions;
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) return errno;
    int failed = posix_spawn_file_actions_init(&actions);
    if (failed == 0) {
        failed = posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
        if (failed == 0)
            failed = posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
        if (failed == 0) failed = posix_spawn(child, "/bin/sh", &actions, NULL, arguments, environ);
        posix_spawn_file_actions_destroy(&actions);
    }
    close(ends[1]);
    *output = ends[0];
    if (failed != 0) close(ends[0]);
    return failed;
}

/* Reads a command's output to its end, or to the deadline. NULL, or why not. */
static const char *keys_drain(int output, char *text, uint64_t deadline_ns)
{
    size_t bytes = 0;
    for (;;) {
        struct pollfd poller = {.fd = output, .events = POLLIN};
        const uint64_t now_ns = base_clock_ns();
        if (now_ns >= deadline_ns) return "did not end within 60 seconds";
        const int ready = poll(&poller, 1, (int)((deadline_ns - now_ns) / 1000000 + 1));
        if (ready <= 0) continue;
        const ssize_t got = read(output, text + bytes, KEYS_TEXT_BYTES - 1 - bytes);
        if (got < 0 && errno != EINTR) return "cannot be read";
        if (got > 0) bytes += (size_t)got;
        if (bytes == KEYS_TEXT_BYTES - 1) return "wrote more than 4 KiB";
        if (got != 0) continue;
        text[bytes] = '\0';
        return NULL;
    }
}

/* Runs a command. NULL, or why its output does not count. */
static const char *keys_run(const char *command, char *text)
{
    pid_t child;
    int output = -1, state = 0;
    tiers_watchdog_suspend();
    if (keys_spawn(command, &child, &output) != 0) return "cannot be started";
    const char *fault =
        keys_drain(output, text, base_clock_ns() + KEYS_COMMAND_SECONDS * UINT64_C(1000000000));
    close(output);
    if (fault != NULL) (void)kill(child, SIGKILL);
    while (waitpid(child, &state, 0) < 0 && errno == EINTR)
        continue;
    /* A host process that reaps all of its children leaves no state, and output that is keys. */
    if (fault == NULL && !(WIFEXITED(state) && WEXITSTATUS(state) == 0)) fault = "failed";
    return fault;
}

const char *seal_keys_read(const char *file, const char *command, seal_keys *out, char *message,
                           size_t message_size)
{
    char text[KEYS_TEXT_BYTES] = "";
    const bool reads = file != NULL && file[0] != '\0';
    const char *const kind = reads ? "key_file" : "key_command";
    const char *const source = reads ? file : command;
    uint32_t line = 0;
    const char *fault = reads ? base_secret_read(file, text, sizeof text) : keys_run(command, text);
    if (fault == NULL && strlen(text) == sizeof text - 1) fault = "has more than 4 KiB";
    if (fault != NULL) {
        snprintf(message, message_size, "%s %s %s", kind, source, fault);
    } else if ((fault = keys_parse(text, out, &line)) != NULL) {
        snprintf(message, message_size, "%s %s, line %u: %s", kind, source, line, fault);
    }
    explicit_bzero(text, sizeof text);
    if (fault != NULL) explicit_bzero(out, sizeof *out);
    return fault;
}
