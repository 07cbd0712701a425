/* SPDX-License-Identifier: Apache-2.0 */
/*
 * profile_show.h - kvterrace profile show. One thread.
 */
#ifndef TOOLS_PROFILE_SHOW_H
#define TOOLS_PROFILE_SHOW_H

int command_profile_show(int argc, char **argv);

#endif
