/*
 * profile_manage.h - the subcommands of `kvterrace profile` that deal with a whole database. One
 * thread.
 */
#ifndef TOOLS_PROFILE_MANAGE_H
#define TOOLS_PROFILE_MANAGE_H

int command_profile_migrate(int argc, char **argv);

#endif
