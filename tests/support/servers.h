/* SPDX-License-Identifier: Apache-2.0 */
/*
 * servers.h - servers of Valkey or Redis for tests, by lab/servers.py. They end with the process
 * that started them. One thread at a time.
 */
#ifndef TESTS_SERVERS_H
#define TESTS_SERVERS_H

#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

typedef struct servers_options {
    uint32_t nodes;
    bool single;                  /* one server that is no cluster */
    bool tls;                     /* they listen to TLS, too, with what the arguments say */
    const char *const *arguments; /* further ones of each server, NULL at the end; or NULL */
} servers_options;

typedef struct servers {
    char addresses[512]; /* host:port, with commas */
    unsigned tls_port;   /* of the first */
    bool cluster;
    FILE *to, *from;
    pid_t pid;
} servers;

/* Sends a request, and takes the line of its answer. False: there is none. */
static inline bool servers_request(servers *s, char *answer, size_t size, const char *format, ...)
{
    va_list rest;
    va_start(rest, format);
    (void)vfprintf(s->to, format, rest);
    va_end(rest);
    (void)fputc('\n', s->to);
    answer[0] = '\0';
    if (fflush(s->to) != 0 || fgets(answer, (int)size, s->from) == NULL) return false;
    answer[strcspn(answer, "\n")] = '\0';
    return true;
}

/* Ends the servers that run, and removes their files. */
static inline void servers_stop(servers *s)
{
    char answer[16];
    if (s->pid == 0) return;
    (void)servers_request(s, answer, sizeof answer, "stop");
    (void)fclose(s->to);
    (void)fclose(s->from);
    (void)waitpid(s->pid, NULL, 0);
    s->pid = 0;
}

/* Starts servers and waits until all serve. 0; 77: none is installed here; 1. */
static inline int servers_start(const servers_options *options, servers *s)
{
    int to[2], from[2];
    char path[1024], words[2048] = "", answer[560];
    const char *source = getenv("KVT_SOURCE_DIR");
    *s = (servers){.cluster = !options->single};
    snprintf(path, sizeof path, "%s/lab/servers.py", source != NULL ? source : ".");
    if (pipe2(to, O_CLOEXEC) != 0 || pipe2(from, O_CLOEXEC) != 0) return 1;
    s->pid = fork();
    if (s->pid == 0) {
        (void)dup2(to[0], 0);
        (void)dup2(from[1], 1);
        execlp("python3", "python3", path, "--serve", (char *)NULL);
        _exit(127);
    }
    (void)close(to[0]);
    (void)close(from[1]);
    s->to = fdopen(to[1], "w");
    s->from = fdopen(from[0], "r");
    for (const char *const *word = options->arguments; word != NULL && *word != NULL; word++)
        snprintf(words + strlen(words), sizeof words - strlen(words), "\t%s", *word);
    const bool told = servers_request(s, answer, sizeof answer, "start\t%u\t%s\t%s%s",
                                      options->nodes, options->single ? "single" : "cluster",
                                      options->tls ? "tls" : "plain", words);
    if (told && sscanf(answer, "%511[^\t]\t%u", s->addresses, &s->tls_port) == 2) return 0;
    servers_stop(s);
    return strcmp(answer, "absent") == 0 ? 77 : 1;
}

/* Sends a signal to a node's server, as SIGSTOP and SIGCONT. */
static inline bool servers_signal(servers *s, uint32_t node, int number)
{
    char answer[16];
    return servers_request(s, answer, sizeof answer, "signal\t%u\t%d", node, number);
}

static inline bool servers_kill(servers *s, uint32_t node)
{
    char answer[16];
    return servers_request(s, answer, sizeof answer, "kill\t%u", node);
}

/* Kills a server, and starts one in its place, which has its slots and none of its objects. */
static inline bool servers_restart(servers *s, uint32_t node)
{
    char answer[16];
    return servers_request(s, answer, sizeof answer, "restart\t%u", node) &&
           strcmp(answer, "done") == 0;
}

/* Sends one command, of words without blanks, to a node and takes the answer's text. */
static inline bool servers_say(servers *s, uint32_t node, const char *line, char *answer,
                               size_t size)
{
    return servers_request(s, answer, size, "say\t%u\t%s", node, line) && answer[0] != '\0';
}

#endif
