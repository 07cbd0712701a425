/* SPDX-License-Identifier: Apache-2.0 */
/*
 * secret.h - a password or keys, in a file that its owner alone may read.
 *
 * Thread rule: any thread.
 */
#ifndef BASE_SECRET_H
#define BASE_SECRET_H

#include <stddef.h>

#define BASE_PASSWORD_MAX 256u

typedef struct base_password {
    char text[BASE_PASSWORD_MAX + 2];
} base_password;

/* Reads the first size - 1 bytes of a regular file whose mode gives group and others nothing, and
 * ends them with a 0. NULL: read; else why not, a static text that follows the file's name, and
 * text holds nothing of the file. */
const char *base_secret_read(const char *path, char *text, size_t size);

/* Reads the first line of such a file. As above, but that on failure *password is as it was. */
const char *base_password_read(const char *path, base_password *password);

#endif
