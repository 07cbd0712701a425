/* SPDX-License-Identifier: Apache-2.0 */
/*
 * secret.c - reads secrets. The text goes to the caller alone, and what was read on the way is
 * wiped.
 *
 * Thread rule: as secret.h says.
 */
#include "base/secret.h"

#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

const char *base_secret_read(const char *path, char *text, size_t size)
{
    struct stat facts;
    const int file = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (file < 0) return "cannot be read";
    const char *fault = NULL;
    ssize_t bytes = 0;
    if (fstat(file, &facts) != 0 || !S_ISREG(facts.st_mode))
        fault = "is no regular file";
    else if ((facts.st_mode & (S_IRWXG | S_IRWXO)) != 0)
        fault = "may be read by others than its owner: chmod 600 it";
    else if ((bytes = read(file, text, size - 1)) <= 0)
        fault = "is empty";
    close(file);
    text[fault == NULL ? bytes : 0] = '\0';
    return fault;
}

const char *base_password_read(const char *path, base_password *password)
{
    base_password read_now;
    const char *fault = base_secret_read(path, read_now.text, BASE_PASSWORD_MAX + 2);
    if (fault != NULL) return fault;
    read_now.text[strcspn(read_now.text, "\r\n")] = '\0';
    if (read_now.text[0] == '\0')
        fault = "is empty";
    else if (strlen(read_now.text) > BASE_PASSWORD_MAX)
        fault = "has a line of more than 256 bytes";
    else
        *password = read_now;
    explicit_bzero(&read_now, sizeof read_now);
    return fault;
}
