/* SPDX-License-Identifier: Apache-2.0 */
/*
 * output_file.h - files that the command writes: never over one that it reads. One thread.
 *
 * command_check_target looks at a file before any work; estimator/model/whole_file.h writes it,
 * whole or as it was.
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

#endif
