/*
 * profile_manage_command.c - kvterrace profile migrate: what is done to a profile database as a
 * whole. One thread.
 */
#include "command.h"
#include "profile_manage.h"

#include <kvterrace/profile.h>

#include <string.h>

typedef struct manage_arguments {
    command_common common;
} manage_arguments;

static const struct argp_option manage_options[] = {
    {"database", 'd', "FILE", 0, "Profile database (store.profile; kvterrace-profile.db)", 0},
    {0},
};

static error_t manage_parse(int key, char *argument, struct argp_state *state)
{
    manage_arguments *arguments = state->input;
    switch (key) {
    case ARGP_KEY_INIT: state->child_inputs[0] = &arguments->common; return 0;
    case 'd': command_add_setting(&arguments->common, "store.profile", argument); return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

static const char *manage_path(kvt_config *config)
{
    const char *path = kvt_config_text(config, "store.profile");
    return path ? path : "kvterrace-profile.db";
}

/* Opens the profile that the settings name; it must exist unless flags has MAKE. */
static kvt_status manage_open(kvt_config *config, uint32_t flags, kvt_profile **profile_out,
                              char *message, size_t message_size)
{
    const char *path = manage_path(config);
    if (kvt_config_switch(config, "store.profile_foreign")) flags |= KVT_PROFILE_FOREIGN;
    kvt_status status = kvt_profile_open(path, flags, profile_out, message, message_size);
    return status == KVT_MISS ? KVT_E_GONE : status;
}

int command_profile_migrate(int argc, char **argv)
{
    const struct argp_child children[] = COMMAND_CHILDREN;
    const struct argp argp = {
        .options = manage_options,
        .parser = manage_parse,
        .doc = "Brings a profile of an older schema version up to date, in one transaction that "
               "keeps everything in it. A profile that is up to date stays as it is.",
        .children = children};
    manage_arguments arguments;
    char message[COMMAND_MESSAGE_BYTES] = "";
    kvt_profile *profile = NULL;
    memset(&arguments, 0, sizeof arguments);
    int code = command_load(&argp, argc, argv, &arguments);
    if (code != EXIT_FINE) return code;
    /* Opening for reading first: what does not exist is not made. */
    kvt_status status =
        manage_open(arguments.common.config, KVT_PROFILE_READ, &profile, message, sizeof message);
    kvt_profile_close(profile);
    profile = NULL;
    if (status == KVT_E_VERSION) {
        status = manage_open(arguments.common.config, KVT_PROFILE_WRITE, &profile, message,
                             sizeof message);
        kvt_profile_close(profile);
    }
    static const char *const no_sections[] = {NULL};
    code = status == KVT_OK ? command_report_unused(&arguments.common, no_sections)
                            : command_fail_input(status, message);
    if (code == EXIT_FINE) command_note(&arguments.common, "the profile is up to date");
    command_unload(&arguments.common);
    return command_finish(code);
}
