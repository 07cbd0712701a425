/* SPDX-License-Identifier: Apache-2.0 */
/*
 * data_files.h - the files that come with kvterrace: profiles/ and reference_model/, from a
 * checkout or from where they were installed. One thread.
 */
#ifndef TOOLS_DATA_FILES_H
#define TOOLS_DATA_FILES_H

#include "command.h"

/* A path as the user gave it, when something is there; else the file of that name that was
 * installed beside this program (../share/kvterrace from its folder, then the configured prefix);
 * else the path as it was given, for a message that names it. A path to one of our texts may lack
 * its .zst. It lives as long as common. */
const char *command_data_path(command_common *common, const char *path);

/* The same of the path behind the `=` of CLASS=PATH, or of the whole. */
const char *command_data_text(command_common *common, const char *text);

/* The same of a setting's value, when it was set; what else it may be starts with `except`. */
void command_data_setting(command_common *common, const char *key, const char *except);

#endif
