/* SPDX-License-Identifier: Apache-2.0 */
/*
 * output_file.h - files that the command writes: never over one that it reads, and whole or as they
 * were. One thread.
 *
 * A file is looked at by command_check_target before any work. It is written under the name that
 * output_begin gives, in the same folder, and gets its own name when all of it is there. What is no
 * regular file (a terminal, a pipe) is written directly.
 */
#ifndef TOOLS_OUTPUT_FILE_H
#define TOOLS_OUTPUT_FILE_H

#include "command.h"

/* Names a file that this run reads or writes for something else: no output may be that file. The
 * configuration files and the paths in the settings are known without this. The path stays the
 * caller's. */
void command_add_input(command_common *common, const char *path);

/* Whether a file could be made at path and is none of those that this run uses otherwise: KVT_OK,
 * or KVT_E_CONFIG with a message that starts with what. Makes nothing. */
KVT_NODISCARD kvt_status command_check_target(const command_common *common, const char *what,
                                              const char *path, char *message, size_t message_size);

/* The name to write to, which is freed by output_end; the file is there, and empty. KVT_OK;
 * KVT_E_CONFIG when it cannot be made; KVT_E_MEMORY. */
KVT_NODISCARD kvt_status output_begin(const char *path, char **partial_out, char *message,
                                      size_t message_size);

/* Gives the file its name when status is KVT_OK and removes it otherwise. Returns status, or
 * KVT_E_IO. NULL in *partial is nothing to end. */
KVT_NODISCARD kvt_status output_end(char **partial, const char *path, kvt_status status,
                                    char *message, size_t message_size);

#endif
