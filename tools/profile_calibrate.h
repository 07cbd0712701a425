/* SPDX-License-Identifier: Apache-2.0 */
/*
 * profile_calibrate.h - the subcommand `kvterrace profile calibrate`. One thread.
 */
#ifndef TOOLS_PROFILE_CALIBRATE_H
#define TOOLS_PROFILE_CALIBRATE_H

int command_profile_calibrate(int argc, char **argv);

#endif
