/* SPDX-License-Identifier: Apache-2.0 */
/*
 * main.c - the kvterrace command and its subcommands. One thread.
 */
#include "commands.h"

static const command_spec *const main_commands[] = {
    &profile_spec,     &tools_size_spec,   &replay_spec,       &report_spec,   &encode_spec,
    &decode_spec,      &inspect_spec,      &verify_spec,       &recover_spec,  &tools_rekey_spec,
    &serve_spec,       &tools_top_spec,    &tools_ls_spec,     &tools_rm_spec, &clear_spec,
    &tools_flush_spec, &tools_retire_spec, &check_config_spec, &settings_spec, NULL,
};

static const command_spec main_spec = {
    .name = "kvterrace",
    .about = "Decides where and in which variant an LLM server's KV cache is kept, and measures "
             "what that takes.",
    .commands = main_commands,
    .example = "  kvterrace replay --workload poisson --policy lru,utility --report run.html",
};

int main(int argc, char **argv)
{
    return command_main(&main_spec, argc, argv);
}
