/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_bench_gpu.c - every bar of `kvlab gpu` runs on small entries: all that it decodes and loads
 * is bit for bit right, faults make no wrong byte and nothing is left. Over the stand-in for the
 * driver with the host's build of the kernels, or on a GPU; without either it skips (77). Speeds
 * judge nothing.
 *
 *     test_bench_gpu --loads N [--first F] [--seconds S]    loads with faults alone, N of them
 */
#include "cases.h"
#include "fake_kernels.h"
#include "ptx_machine.h"

#include "lab/bench/bench_gpu.h"

#include <math.h>

enum { BARS = 8 };

static fake_cuda_state *fake_state;

static void run_spin(const fake_cuda_kernel *kernel, const fake_cuda_launch *launch)
{
    (void)kernel;
    (void)launch;
}

static const fake_cuda_kernel spin = {GPU_BENCH_SPIN, run_spin, {8, 8}};

static const bench_gpu_options small = {
    .shape = {.layers = 2, .kv_heads = 2, .head_dim = 64, .dtype = KVT_DTYPE_BF16, .tokens = 64},
    .decode_bytes = 131072,
    .context = 3,
    .loads = 10000,
    .seconds = 100000, /* no clock leaves a bar out */
    .loads_seconds = 20};

/* Runs the case; the report is the caller's. */
static json_t *run_case(const bench_gpu_options *own)
{
    const bench_options options = {.quick = true, .quiet = true, .own = own};
    bench_report report;
    bench_report_open(&report, "test");
    const kvt_status status = bench_gpu_case.run(&options, &report);
    if (status != KVT_OK) fail_msg("%s: %s", kvt_status_name(status), report.message);
    assert_false(report.failed);
    return report.root;
}

static const char *text_of(const json_t *row, const char *key)
{
    const char *text = json_string_value(json_object_get(row, key));
    return text != NULL ? text : "";
}

/* What has no kernel, or whose module is refused, may be left out; nothing else. */
static bool may_be_left_out(const json_t *row)
{
    return strstr(text_of(row, "not_run"), "no kernel for it") != NULL;
}

TEST(every_bar_runs)
{
    json_t *root = run_case(&small), *row;
    uint32_t rows[BARS + 1] = {0}, exact = 0;
    size_t i;
    json_array_foreach(json_object_get(root, "gpu"), i, row)
    {
        const json_int_t bar = json_integer_value(json_object_get(row, "bar"));
        const double reached = json_number_value(json_object_get(row, "reached"));
        assert_true(bar >= 1 && bar <= BARS);
        if (text_of(row, "not_run")[0] != '\0') {
            if (!may_be_left_out(row))
                fail_msg("bar %d, %s: %s", (int)bar, text_of(row, "case"), text_of(row, "not_run"));
            continue;
        }
        rows[bar]++;
        if (json_is_false(json_object_get(row, "bit_exact")))
            fail_msg("bar %d: %s is not bit for bit right", (int)bar, text_of(row, "variant"));
        exact += json_is_true(json_object_get(row, "bit_exact"));
        assert_true(isfinite(reached) && reached >= 0);
        if (bar == BARS && reached > 0 && strcmp(text_of(row, "measure"), "loads") != 0)
            fail_msg("%s: %s: %g", text_of(row, "variant"), text_of(row, "measure"), reached);
    }
    for (uint32_t bar = 1; bar <= BARS; bar++)
        if (rows[bar] == 0) fail_msg("no row of bar %u", bar);
    assert_true(exact >= 20);
    uint64_t loads = 0, right = 0, failed = 0, kinds[4] = {0};
    static const char *const names[4] = {"flips", "copies", "launches", "deadlines"};
    json_array_foreach(json_object_get(root, "faults"), i, row)
    {
        loads += (uint64_t)json_integer_value(json_object_get(row, "loads"));
        right += (uint64_t)json_integer_value(json_object_get(row, "right"));
        failed += (uint64_t)json_integer_value(json_object_get(row, "failed"));
        for (int k = 0; k < 4; k++)
            kinds[k] += (uint64_t)json_integer_value(json_object_get(row, names[k]));
    }
    printf("loads=%llu right=%llu failed=%llu\n", (unsigned long long)loads,
           (unsigned long long)right, (unsigned long long)failed);
    assert_true(loads > 0 && right > 0);
    for (int k = 0; k < 4 && loads > 200; k++)
        assert_true(kinds[k] > 0);
    json_decref(root);
    assert_int_equal(fake_kernel_failures, 0);
    if (fake_state != NULL) assert_int_equal(fake_state->live, 0);
}

/* A driver that refuses every module: rows say so, and the other bars go on. */
TEST(bars_that_cannot_run_say_why)
{
    if (fake_state == NULL) skip();
    bench_gpu_options own = small;
    uint32_t left_out = 0;
    size_t i;
    own.loads = 5;
    fake_state->calls = fake_state->failed = 0;
    fake_state->fail_name = "cuModuleLoadData";
    fake_state->fail_call = 1;
    fake_state->fail_alike = 1;
    fake_state->fail_result = 222;
    json_t *root = run_case(&own), *row;
    fake_state->fail_call = 0;
    fake_state->fail_name = NULL;
    json_array_foreach(json_object_get(root, "gpu"), i, row) left_out +=
        strncmp(text_of(row, "not_run"), "not run: ", 9) == 0;
    assert_true(left_out >= 10);
    json_decref(root);
    assert_int_equal(fake_state->live, 0);
}

/* The case `ring` has kernels as producers where there is a GPU, else a row that says why not. */
TEST(kernels_post_to_a_ring)
{
    for (int refused = 0; refused <= (fake_state != NULL); refused++) {
        const bench_options options = {.quick = true, .quiet = true, .iterations = 1};
        bench_report report;
        uint32_t rows = 0;
        json_t *row;
        size_t i;
        if (refused == 1) *fake_state = (fake_cuda_state){.gpu_count = 1, .queries_until_done = 1};
        bench_report_open(&report, "test");
        const kvt_status status = bench_ring_case.run(&options, &report);
        fake_kernels_give(fake_state, &spin, 1);
        if (status != KVT_OK) fail_msg("%s: %s", kvt_status_name(status), report.message);
        json_array_foreach(json_object_get(report.root, "results"), i, row) rows +=
            strcmp(text_of(row, "initiator"), "gpu") == 0;
        assert_int_equal(rows, refused == 0);
        json_array_foreach(json_object_get(report.root, "gpu"), i, row)
        {
            assert_int_equal(text_of(row, "not_run")[0] != '\0', refused);
            assert_int_equal(json_is_true(json_object_get(row, "same_bytes")), !refused);
        }
        json_decref(report.root);
        assert_int_equal(fake_kernel_failures, 0);
        if (fake_state != NULL) assert_int_equal(fake_state->live, 0);
    }
}

/* A kernel that writes nothing, and says so to nobody: pages keep the bytes of before. */
TEST(a_kernel_that_does_nothing_is_found)
{
    if (fake_state == NULL) skip();
    bench_gpu_options own = small;
    uint32_t wrong = 0;
    size_t i;
    own.loads = 50;
    fake_kernels[KERNEL_RAW].run = run_spin;
    json_t *root = run_case(&own), *row;
    fake_kernels[KERNEL_RAW].run = fake_kernel_run;
    json_array_foreach(json_object_get(root, "gpu"), i, row) wrong +=
        json_is_false(json_object_get(row, "bit_exact"));
    assert_true(wrong >= 4); /* decoding, checking, and both loads of raw entries */
    row = json_array_get(json_object_get(root, "faults"), 0);
    assert_string_equal(text_of(row, "variant"), "raw");
    /* Entries of which a check has failed once are the CPU's from then on, and right. */
    assert_true(json_integer_value(json_object_get(row, "wrong")) >
                json_integer_value(json_object_get(row, "right")));
    json_decref(root);
}

/* The kernel that stands for an engine takes the turns that it is told to, and writes nothing. */
TEST(the_engine_s_kernel_turns)
{
    char error[PTX_ERROR_BYTES];
    ptx_machine *machine = ptx_open(bench_gpu_spin_ptx, strlen(bench_gpu_spin_ptx), error);
    if (machine == NULL) fail_msg("%s", error);
    uint64_t steps[2];
    for (int i = 0; i < 2; i++) {
        uint64_t turns = i == 0 ? 100 : 300, target = 0;
        const void *parameters[] = {&turns, &target};
        ptx_launch launch = {.kernel = GPU_BENCH_SPIN,
                             .grid = {2, 1, 1},
                             .block = {32, 1, 1},
                             .parameters = parameters};
        if (!ptx_run(machine, &launch, error)) fail_msg("%s", error);
        steps[i] = launch.steps;
    }
    assert_true(steps[1] - steps[0] >= 200u * 64 * 4);
    ptx_close(machine);
}

/* ---- many loads ---- */

/* Makes loads with faults from a first one on. Each row says where the next run goes on. */
static int run_loads(const bench_gpu_options *own)
{
    json_t *root = run_case(own), *row;
    json_int_t wrong = 0, leaks = 0, loads = 0, right = 0;
    size_t i;
    json_array_foreach(json_object_get(root, "faults"), i, row)
    {
        const json_int_t made = json_integer_value(json_object_get(row, "loads"));
        char *text = json_dumps(row, JSON_COMPACT);
        printf("%s\n", text);
        free(text);
        loads += made;
        right += json_integer_value(json_object_get(row, "right"));
        wrong += json_integer_value(json_object_get(row, "wrong"));
        leaks += json_integer_value(json_object_get(row, "leaks")) +
                 json_integer_value(json_object_get(row, "pinned_leaks"));
    }
    json_decref(root);
    if (fake_state != NULL) leaks += fake_state->live;
    printf("first=%u loads=%lld right=%lld wrong=%lld leaks=%lld left_memory=%u\n", own->first_load,
           (long long)loads, (long long)right, (long long)wrong, (long long)leaks,
           fake_kernel_failures);
    return right == 0 || wrong != 0 || leaks != 0 || fake_kernel_failures != 0;
}

/* Takes the options. Returns 0: there are none, 1: loads are asked for, 2: what nobody knows. */
static int take_loads(int argc, char **argv, bench_gpu_options *own)
{
    const struct {
        const char *name;
        uint32_t *value;
    } known[] = {{"--loads", &own->loads}, {"--first", &own->first_load}};
    for (int i = 1; i < argc; i += 2) {
        const char *text = i + 1 < argc ? argv[i + 1] : "";
        char *end;
        const unsigned long number = strtoul(text, &end, 10);
        if (text[0] < '0' || text[0] > '9' || *end != '\0' || number > INT32_MAX) return 2;
        if (strcmp(argv[i], "--seconds") == 0) {
            own->loads_seconds = (double)number;
            continue;
        }
        size_t k = 0;
        while (k < 2 && strcmp(argv[i], known[k].name) != 0)
            k++;
        if (k == 2) return 2;
        *known[k].value = (uint32_t)number;
    }
    return argc > 1;
}

int main(int argc, char **argv)
{
    char reason[160];
    bench_gpu_options own = small;
    own.shape.kv_heads = 1;
    own.shape.tokens = 48;
    own.bar = BARS;
    own.loads_seconds = own.seconds;
    const int asked = take_loads(argc, argv, &own);
    if (asked == 2) {
        fprintf(stderr, "usage: %s [--loads N] [--first F] [--seconds S]\n", argv[0]);
        return 2;
    }
    fake_state = fake_cuda_find();
    fake_kernels_give(fake_state, &spin, 1);
    if (!bench_gpu_answers(reason, sizeof reason)) {
        printf("skipped: %s\n", reason);
        return 77;
    }
    if (asked == 1) return run_loads(&own);
    return tests_run();
}
