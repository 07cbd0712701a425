/* SPDX-License-Identifier: Apache-2.0 */
/*
 * secret.h - the password of an engine, in a file that its owner alone may read.
 *
 * Thread rule: any thread.
 */
#ifndef REMOTE_SECRET_H
#define REMOTE_SECRET_H

#define REMOTE_PASSWORD_MAX 256u

typedef struct remote_secret {
    char text[REMOTE_PASSWORD_MAX + 2];
} remote_secret;

/* Reads the first line of a regular file whose mode gives group and others nothing. NULL: read;
 * else why not, a static text that follows the file's name, and *secret is as it was. */
const char *remote_secret_read(const char *path, remote_secret *secret);

#endif
