/*
 * bench_command.c - kvterrace bench: the library's own parts beside this machine's limits.
 *
 * One thread. Which devices may be overwritten is decided as for profile: see device_list.h.
 */
#include "command.h"
#include "device_list.h"

#include "bench/bench.h"

typedef struct bench_arguments {
    command_common common;
    bool quick;
    uint32_t iterations;
    const char *directory;
} bench_arguments;

static const struct argp_option bench_argp_options[] = {
    {"quick", 'Q', NULL, 0, "One short iteration: shows that it runs, not how fast", 0},
    {"iterations", 'n', "N", 0, "Repetitions of each measurement", 0},
    {"directory", 'D', "DIR", 0, "Where test files go; they are removed afterwards", 0},
    {0},
};

static error_t bench_parse(int key, char *argument, struct argp_state *state)
{
    bench_arguments *arguments = state->input;
    switch (key) {
    case ARGP_KEY_INIT: state->child_inputs[0] = &arguments->common; return 0;
    case 'Q': arguments->quick = true; return 0;
    case 'D': arguments->directory = argument; return 0;
    case 'n':
        if (!command_parse_count(argument, 999999, &arguments->iterations)) {
            argp_error(state, "--iterations: '%s' is not from 1 to 999999", argument);
        }
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

/* Runs over the configured devices, or over what the bench makes for itself. */
static int bench_run_devices(bench_arguments *arguments)
{
    kvt_device_config configs[DEVICE_LIST_MAX];
    bool overwrite[DEVICE_LIST_MAX];
    bench_options options = {.out = stdout,
                             .json = arguments->common.json,
                             .quick = arguments->quick,
                             .iterations = arguments->iterations,
                             .scratch_folder = arguments->directory};
    static const char *const sections[] = {"device.*", NULL};
    char message[COMMAND_MESSAGE_BYTES] = "";
    device_list list = {0};
    kvt_status status = KVT_OK;
    if (kvt_config_device_at(arguments->common.config, 0)) {
        status = device_list_make(arguments->common.config, ".", 0, &list, message, sizeof message);
    }
    int code = status == KVT_OK ? command_report_unused(&arguments->common, sections)
                                : command_fail(status, message);
    if (code == EXIT_FINE) {
        for (size_t i = 0; i < list.count; i++) {
            configs[i] = list.items[i].config;
            overwrite[i] = list.items[i].overwrite;
        }
        options.devices = list.count ? configs : NULL;
        options.overwrite = list.count ? overwrite : NULL;
        options.device_count = (uint32_t)list.count;
        code = bench_devices_run(&options);
    }
    device_list_free(&list);
    return code;
}

static int bench_devices(int argc, char **argv)
{
    const struct argp_child children[] = COMMAND_CHILDREN;
    const struct argp argp = {
        .options = bench_argp_options,
        .parser = bench_parse,
        .doc = "Reads and writes every configured device through a pool, beside memcpy, and a "
               "stripe over two throttled members with proportional and with equal shares. A "
               "device with content is only read, unless store.format gives it up.",
        .children = children};
    bench_arguments arguments = {0};
    int code = command_load(&argp, argc, argv, &arguments);
    if (code != EXIT_FINE) return code;
    code = bench_run_devices(&arguments);
    command_unload(&arguments.common);
    return command_finish(code);
}

int command_bench(int argc, char **argv)
{
    static const command_entry table[] = {
        {"devices", "devices and striping: bytes per second", bench_devices},
        {0},
    };
    return command_choose(table, "COMMAND [OPTION...]",
                          "Measures parts of the library beside this machine's own limits.\v", argc,
                          argv);
}
