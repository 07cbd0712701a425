/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_codecs_ptx_machine.c - whole kernels in the machine: what nvcc made of
 * tests/golden/ptx_groups.cu gives what the same gives in C, and each fault of a kernel, of a
 * launch or of a text is an error that names its place.
 */
#include "cases.h"
#include "ptx_machine.h"

#include <math.h>
#include <stdio.h>

static ptx_machine *open_text(const char *text)
{
    char error[PTX_ERROR_BYTES];
    ptx_machine *machine = ptx_open(text, strlen(text), error);
    if (machine == NULL) fail_msg("%s", error);
    return test_after((void (*)(void *))ptx_close, machine);
}

static ptx_machine *open_groups(void)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/tests/golden/ptx_groups.ptx", getenv("KVT_SOURCE_DIR"));
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    char *text = test_zeros(1 << 20);
    assert_true(fread(text, 1, (1 << 20) - 1, file) > 0);
    fclose(file);
    return open_text(text);
}

/* Runs the blocks forwards or, in a second run of a test, backwards. */
static uint32_t order;

static void run(ptx_machine *machine, const char *kernel, uint32_t blocks, uint32_t threads,
                uint32_t dynamic, const void *const *parameters)
{
    char error[PTX_ERROR_BYTES];
    ptx_launch launch = {.kernel = kernel,
                         .grid = {blocks, 1, 1},
                         .block = {threads, 1, 1},
                         .dynamic_shared_bytes = dynamic,
                         .flags = order,
                         .parameters = parameters};
    if (!ptx_run(machine, &launch, error)) fail_msg("%s", error);
    assert_true(launch.steps >= blocks * threads);
}

#define LOW(n) (0u - (n))

static uint32_t mixed(uint32_t i)
{
    i = (i + 1) * 2654435761u;
    return i ^ i >> 15;
}

TEST(lanes_vote_and_shuffle)
{
    ptx_machine *machine = open_groups();
    uint32_t in[128], out[128][12];
    for (uint32_t i = 0; i < 128; i++)
        in[i] = i < 32 ? 7 : mixed(i) & 255;
    const uint64_t from = ptx_map(machine, in, sizeof in, false);
    const uint64_t to = ptx_map(machine, out, sizeof out, true);
    run(machine, "lanes", 2, 64, 0, (const void *const[]){&from, &to});
    for (uint32_t warp = 0; warp < 4; warp++) {
        const uint32_t *value = in + 32 * warp;
        uint32_t odd = 0, sum = 0, least = UINT32_MAX, crossed = 0, any = 0, all = 1, same = 1;
        uint32_t mine[32], votes = 0;
        for (uint32_t i = 0; i < 32; i++) {
            odd |= (value[i] & 1) << i;
            sum += value[i];
            least = value[i] < least ? value[i] : least;
            crossed ^= value[i];
            any |= value[i] > 250;
            all &= value[i] < 200;
            same &= value[i] >> 8 == value[0] >> 8;
            mine[i] = value[i];
            if (i % 3 != 0) continue;
            mine[i] = 0;
            for (uint32_t k = 0; k < (value[i] & 15); k++)
                mine[i] += k * value[i];
            votes |= (mine[i] & 1) << i;
        }
        for (uint32_t i = 0; i < 32; i += 3)
            mine[i] += votes;
        for (uint32_t i = 0; i < 32; i++) {
            const uint32_t *got = out[32 * warp + i];
            uint32_t like = 0;
            for (uint32_t k = 0; k < 32; k++)
                like |= (uint32_t)((value[k] & 3) == (value[i] & 3)) << k;
            const uint64_t wide = (uint64_t)value[i ^ 1] << 32 | (i ^ 1);
            const uint32_t wanted[12] = {odd,
                                         value[i * 7 % 32],
                                         i % 16 < 3 ? value[i] : value[i - 3],
                                         i % 8 + 5 > 7 ? value[i] : value[i + 5],
                                         value[i ^ 9],
                                         any * 2 + all,
                                         like,
                                         same != 0 ? 0 : 0,
                                         sum ^ least ^ crossed,
                                         mine[i],
                                         mine[31 - i],
                                         (uint32_t)(wide >> 16)};
            for (uint32_t k = 0; k < 12; k++)
                assert_int_equal(got[k], k == 7 ? UINT32_MAX + same : wanted[k]);
        }
    }
}

TEST(blocks_share_memory)
{
    ptx_machine *machine = open_groups();
    uint32_t in[512], out[512][3], bins[11] = {0, UINT32_MAX, 0, UINT32_MAX};
    for (uint32_t i = 0; i < 512; i++)
        in[i] = i < 256 ? mixed(i) & 255 : mixed(i) & 511;
    in[300] = 77;
    const uint64_t from = ptx_map(machine, in, sizeof in, false);
    const uint64_t to = ptx_map(machine, out, sizeof out, true);
    const uint64_t counts = ptx_map(machine, bins, sizeof bins, true);
    run(machine, "blocks", 2, 256, 1024, (const void *const[]){&from, &to, &counts});
    uint32_t most = 0, least = UINT32_MAX, seen = 0, crossed = 0, total = 0;
    for (uint32_t block = 0; block < 2; block++) {
        const uint32_t *value = in + 256 * block;
        uint32_t sum = 0, many = 0, some = 0, each = 1, count[16] = {0};
        for (uint32_t i = 0; i < 256; i++) {
            sum += value[i];
            many += value[i] & 1;
            some |= value[i] == 77;
            each &= value[i] < 256;
            count[value[i] & 15]++;
            most = value[i] > most ? value[i] : most;
            least = value[i] < least ? value[i] : least;
            seen |= 1u << (value[i] & 31);
            crossed ^= value[i];
            total += value[i];
        }
        for (uint32_t i = 0; i < 256; i++) {
            const uint32_t *got = out[256 * block + i];
            assert_int_equal(got[0], value[255 - i] + sum);
            assert_int_equal(got[1], many * 4 + some * 2 + each);
            assert_int_equal(got[2], count[i & 15]);
        }
    }
    uint64_t wide;
    float half;
    memcpy(&wide, &bins[6], sizeof wide);
    memcpy(&half, &bins[10], sizeof half);
    assert_int_equal(bins[0], most);
    assert_int_equal(bins[1], least);
    assert_int_equal(bins[2], seen);
    assert_int_equal(bins[3], ~seen);
    assert_int_equal(bins[4], crossed);
    assert_int_equal(bins[5], 512);
    assert_int_equal(wide, (uint64_t)total << 20);
    assert_int_equal(bins[8], 1);
    assert_int_equal(bins[9], 0);
    assert_true(half == 256);
}

TEST(spaces_and_calls)
{
    static const uint32_t table[5] = {3, 1, 4, 1, 5};
    static const float factors[3] = {1.5f, -2.0f, 0.25f};
    ptx_machine *machine = open_groups();
    float in[32][4], out[32][4];
    int16_t small[32];
    uint64_t word = 1000;
    for (uint32_t i = 0; i < 128; i++)
        in[i / 4][i % 4] = (float)(mixed(i) % 1000) / 7;
    for (uint32_t i = 0; i < 32; i++)
        small[i] = (int16_t)(i * 1000);
    const struct {
        uint64_t from, to;
        uint32_t count;
        float scale;
    } job = {ptx_map(machine, &word, sizeof word, false), 0, 7, 0.1f};
    const uint64_t from = ptx_map(machine, in, sizeof in, false);
    const uint64_t to = ptx_map(machine, out, sizeof out, true);
    const uint64_t shorts = ptx_map(machine, small, sizeof small, true);
    run(machine, "spaces", 1, 32, 0, (const void *const[]){&job, &from, &to, &shorts});
    for (uint32_t t = 0; t < 32; t++) {
        uint32_t local[8];
        for (uint32_t i = 0; i < 8; i++)
            local[i] = t * i + job.count;
        const uint32_t where = t % 3 == 0 ? (31 - t) * 5 : t % 3 == 1 ? table[t % 5] : local[t & 7];
        local[t & 7] += 9;
        const float x = in[t][0], w = in[t][3];
        const float first = x * factors[where % 3], second = x * factors[0];
        const float sum = (float)(word + where), last = (float)local[(t + job.count) & 7];
        const float fourth = t % 4 == 0 ? w + 1 : t % 4 == 1 ? w * 3 : t % 4 == 2 ? -w : w / 3;
        const float wanted[4] = {first + second, job.scale * in[t][1], sum + last, fourth};
        assert_memory_equal(out[t], wanted, sizeof wanted);
        assert_int_equal(small[t], (int16_t)((int)t * 1000 - (int)t * 300));
    }
    size_t bytes;
    void *memory;
    assert_true(ptx_symbol(machine, "table", &bytes, &memory) != 0);
    assert_int_equal(bytes, sizeof table);
    assert_memory_equal(memory, table, sizeof table);
    assert_true(ptx_symbol(machine, "tables", NULL, NULL) == 0);
}

static uint32_t word_of(float value)
{
    uint32_t word;
    memcpy(&word, &value, sizeof word);
    return word;
}

static uint64_t reversed(uint64_t value)
{
    uint64_t turned = 0;
    for (uint32_t i = 0; i < 64; i++)
        turned = turned << 1 | (value >> i & 1);
    return turned;
}

static uint16_t half_of(_Float16 value)
{
    uint16_t word;
    memcpy(&word, &value, sizeof word);
    return value != value ? 0x7fff : word; /* the canonical NaN */
}

static uint16_t brain_of(float value)
{
    const uint32_t word = word_of(value);
    return (uint16_t)((word + 0x7fff + (word >> 16 & 1)) >> 16);
}

/* What the kernel `numbers` computes. */
static void numbers(uint32_t t, float a, float b, uint64_t *to)
{
    const uint64_t wide = (uint64_t)word_of(a) << 32 | word_of(b);
    const uint32_t low = (uint32_t)wide, high = (uint32_t)(wide >> 32);
    volatile float product = a * b;
    to[0] = word_of(product + a);
    to[1] = word_of(a / b);
    to[2] = word_of(sqrtf(fabsf(a)));
    to[3] = word_of(fminf(a, b)) ^ (uint64_t)word_of(fmaxf(a, -b)) << 32;
    to[4] = (uint64_t)(int64_t)(int)a + (uint64_t)(uint32_t)fabsf(b);
    to[5] = half_of((_Float16)a) | (uint64_t)brain_of(b) << 16;
    const float h = (float)(_Float16)a, k = (float)(_Float16)b;
    to[6] = half_of((_Float16)(h + k)) | (uint64_t)half_of((_Float16)(h * k)) << 16 |
            (uint64_t)half_of((_Float16)((double)h * k + k)) << 32;
    to[7] = word_of(h) + (uint64_t)(a < b) + (uint64_t)(h < k) * 2;
    to[8] = wide % 1000003 + wide / 77;
    to[9] =
        (uint64_t)((int64_t)wide % -1003) + (uint64_t)((unsigned __int128)wide * (wide * 3) >> 64);
    to[10] = (uint64_t)__builtin_clzll(wide) + (uint64_t)__builtin_popcountll(wide) * 100 +
             (uint64_t)__builtin_ffs((int)wide) * 10000;
    to[11] = reversed(wide);
    const uint32_t permuted =
        (low & 0xff) | (high & 0xff) << 8 | (low & 0xff0000) | (high & 0xff0000) << 8;
    const uint32_t by = t & 31;
    to[12] = permuted + (uint64_t)(uint32_t)(by == 0 ? high : high << by | low >> (32 - by));
    to[13] = (uint64_t)((low > t ? low - t : t - low) + 5) + (uint64_t)(int64_t)(int8_t)wide +
             (wide >> (t & 63));
    to[14] = (uint64_t)(int)rintf(a) + (uint64_t)(uint32_t)fabsf(b) + (uint64_t)(float)t;
    to[15] = (uint64_t)((__int128)(int64_t)wide * 77 >> 32);
}

TEST(numbers_are_those_of_the_cpu)
{
    ptx_machine *machine = open_groups();
    enum { COUNT = 128 };
    float in[COUNT][2];
    uint64_t out[COUNT][16], wanted[16];
    for (uint32_t i = 0; i < COUNT; i++)
        for (uint32_t k = 0; k < 2; k++)
            in[i][k] = ldexpf((float)(int32_t)mixed(2 * i + k), (int)(i % 40) - 50);
    const uint64_t from = ptx_map(machine, in, sizeof in, false);
    const uint64_t to = ptx_map(machine, out, sizeof out, true);
    run(machine, "numbers", 4, 32, 0, (const void *const[]){&from, &to});
    for (uint32_t i = 0; i < COUNT; i++) {
        numbers(i, in[i][0], in[i][1], wanted);
        for (uint32_t k = 0; k < 16; k++)
            if (out[i][k] != wanted[k])
                fail_msg("number %u of thread %u: %#llx, not %#llx", k, i,
                         (unsigned long long)out[i][k], (unsigned long long)wanted[k]);
    }
}

/* Kernels by hand: 8 registers of each kind, %r1 the thread, %d1 and %d2 two addresses, 64 bytes of
 * shared memory and 16 of the thread's own. */
#define HEAD(version) ".version " version "\n.target sm_80\n.address_size 64\n"
#define KERNEL                                                                                     \
    ".visible .entry k(.param .u64 a, .param .u64 b)\n{\n.reg .pred %p<8>; .reg .b32 %r<8>; "      \
    ".reg .b64 %d<8>; .reg .f32 %f<8>; .reg .b16 %h<8>;\n.shared .align 16 .b8 s[64]; "            \
    ".shared .align 16 .b8 s2[16]; .local .align 8 .b8 l[16];\n"                                   \
    "ld.param.u64 %d1, [a]; ld.param.u64 %d2, [b]; mov.u32 %r1, %tid.x; mov.u32 %r2, s;\n"

static uint32_t words[64];
static const uint32_t constants[4] = {1, 2, 3, 4};

/* Runs a body on 64 words that may be written and 4 that may not. */
static bool run_body(const char *body, uint32_t threads, uint32_t flags,
                     char error[PTX_ERROR_BYTES])
{
    char text[8192];
    const int bytes = snprintf(text, sizeof text, "%s%s\n}\n", HEAD("7.0") KERNEL, body);
    ptx_machine *machine = ptx_open(text, (size_t)bytes, error);
    if (machine == NULL) return false;
    uint32_t copy[4];
    memcpy(copy, constants, sizeof copy);
    const uint64_t a = ptx_map(machine, words, sizeof words, true);
    const uint64_t b = ptx_map(machine, copy, sizeof copy, false);
    ptx_launch launch = {.kernel = "k",
                         .grid = {2, 1, 1},
                         .block = {threads, 1, 1},
                         .flags = flags,
                         .steps_most = 100000,
                         .parameters = (const void *const[]){&a, &b}};
    const bool ran = ptx_run(machine, &launch, error);
    ptx_close(machine);
    return ran;
}

typedef struct fault {
    const char *body;
    uint32_t threads;
    const char *said[2];
} fault;

static void check_faults(const fault *faults, size_t count)
{
    char error[PTX_ERROR_BYTES];
    for (size_t i = 0; i < count; i++) {
        const fault *one = &faults[i];
        if (run_body(one->body, one->threads, 0, error)) fail_msg("no error: %s", one->body);
        if (strncmp(error, "line ", 5) != 0 || strstr(error, one->said[0]) == NULL ||
            (one->said[1] != NULL && strstr(error, one->said[1]) == NULL))
            fail_msg("%s: %s", one->body, error);
    }
}

#define FAULTS(...)                                                                                \
    do {                                                                                           \
        static const fault faults[] = {__VA_ARGS__};                                               \
        check_faults(faults, sizeof faults / sizeof *faults);                                      \
    } while (0)

TEST(faults_of_memory)
{
    FAULTS(
        {"ld.global.u32 %r3, [%d1+256];",
         1,
         {"line 9 (ld.global.u32), block (0, 0, 0), thread (0, 0, 0): 4 bytes at 0x", "no region"}},
        {"mul.wide.u32 %d3, %r1, 4; add.s64 %d3, %d3, %d1; st.global.u32 [%d3], %r1;",
         65,
         {"thread (64, 0, 0)", "no region"}},
        {"ld.global.u32 %r3, [%d1+-4];", 1, {"no region"}},
        {"ld.global.u32 %r3, [%d1+2];", 1, {"no multiple of 4"}},
        {"ld.global.v4.u32 {%r3, %r4, %r5, %r6}, [%d1+8];", 1, {"no multiple of 16"}},
        {"ld.global.v2.u32 {%r3, %r4}, [%d1+252];", 1, {"no multiple of 8"}},
        {"mov.u64 %d3, 0; ld.u32 %r3, [%d3];", 1, {"no region"}},
        {"mov.u64 %d3, -4; ld.u32 %r3, [%d3];", 1, {"no region"}},
        {"st.global.u32 [%d2], %r1;", 1, {"read only"}},
        {"red.global.add.u32 [%d2], 1;", 1, {"read only"}},
        {"ld.const.u32 %r3, [%d1];", 1, {"another space"}},
        {"ld.shared.u32 %r3, [s+64];", 1, {"outside of every variable"}},
        {"mov.u32 %r3, s2; st.shared.u32 [%r3+16], %r1;", 1, {"outside of every variable"}},
        {"ld.shared.u32 %r3, [%r2+-4];", 1, {"outside of every variable"}},
        {"ld.shared.u32 %r3, [s];", 1, {"nobody wrote"}},
        {"st.shared.u16 [s], %h1; ld.shared.u32 %r3, [s];", 1, {"nobody wrote"}},
        {"mov.u32 %r3, 0x100000; st.shared.u32 [%r3], %r1;", 1, {"outside of every variable"}},
        {"mov.u64 %d3, l; ld.local.u64 %d4, [%d3+128];", 1, {"local 0x80 of 128"}},
        {"ld.param.u64 %d3, [a+16];", 1, {"parameter 0x10 of 16"}},
        {"cvta.shared.u64 %d3, 64; st.u32 [%d3], %r1;", 1, {"outside of every variable"}},
        {"atom.global.add.u64 %d3, [%d1+4], 1;", 1, {"no multiple of 8"}});
}

TEST(faults_of_order)
{
    FAULTS({"st.shared.u32 [s], %r1;", 2, {"line 9 (st.shared.u32)", "thread 0 writes"}},
           {"st.shared.u32 [s], %r1;", 33, {"which thread 0 writes", NULL}},
           {"shl.b32 %r3, %r1, 2; and.b32 %r3, %r3, 28; add.u32 %r3, %r3, %r2; setp.lt.u32 %p1, "
            "%r1, 8; @%p1 st.shared.u32 [%r3], %r1; bar.warp.sync -1; ld.shared.u32 %r4, [s+4];",
            64,
            {"which thread 1 writes"}},
           {"setp.eq.u32 %p1, %r1, 0; @%p1 st.shared.u32 [s], %r1; bar.sync 0; ld.shared.u32 %r4, "
            "[s]; @%p1 st.shared.u32 [s], %r1;",
            64,
            {"another thread reads"}},
           {"setp.eq.u32 %p1, %r1, 40; @%p1 st.shared.u32 [s], %r1; bar.sync 0; ld.shared.u32 %r4, "
            "[s]; @%p1 st.shared.u32 [s], %r1;",
            64,
            {"another thread reads"}});
    char error[PTX_ERROR_BYTES];
    const char *ordered = "setp.eq.u32 %p1, %r1, 5; @%p1 st.shared.u32 [s], %r1; bar.warp.sync -1; "
                          "ld.shared.u32 %r4, [s]; "
                          "bar.warp.sync -1; @%p1 st.shared.u32 [s], %r4; bar.sync 0; "
                          "atom.shared.add.u32 %r3, [s], 1;";
    if (!run_body(ordered, 32, 0, error)) fail_msg("%s", error);
    assert_true(run_body("st.shared.u32 [s], %r1;", 2, PTX_ALLOW_RACES, error));
    assert_true(run_body("ld.shared.u32 %r3, [s];", 2, PTX_ALLOW_UNWRITTEN, error));
}

TEST(faults_of_threads)
{
    FAULTS(
        {"again: bra again;", 1, {"line 9 (bra)", "more than 100000 steps"}},
        {"trap;", 1, {"a trap"}},
        {"setp.lt.u32 %p1, %r1, 7; @%p1 bra low; bar.sync 0; bra end; low: bar.sync 0; end: ret;",
         32,
         {"a barrier in divergent threads: lane 7 is at line 9"}},
        {"setp.lt.u32 %p1, %r1, 32; @%p1 bra low; bar.sync 0; bra end; low: bar.sync 0; end: ret;",
         64,
         {"a barrier in divergent threads: warp 1 is at line 9"}},
        {"setp.lt.u32 %p1, %r1, 32; @%p1 bra end; bar.sync 1, 64; end: ret;",
         64,
         {"not all of its threads come to"}},
        {"setp.lt.u32 %p1, %r1, 7; @%p1 bra end; vote.sync.ballot.b32 %r3, %p1, -1; end: bar.sync "
         "0;",
         32,
         {"vote.sync.ballot.b32", "lane 0 never comes"}},
        {"setp.lt.u32 %p1, %r1, 7; selp.b32 %r3, 0xff, -1, %p1; bar.warp.sync %r3;",
         32,
         {"lane 7 has the mask 0xffffffff, not 0xff"}},
        {"bar.warp.sync 1;", 32, {"without the lane itself"}}, {"bar.sync 16;", 32, {"barrier 16"}},
        {"bar.sync 1, 33;", 64, {"of 33 threads"}},
        {"setp.lt.u32 %p1, %r1, 16; @!%p1 bra end; shfl.sync.down.b32 %r3, %r1, 8, 31, 0xffff; "
         "end: ret;",
         32,
         {"lane 16, which does not take part"}},
        {"t: .branchtargets x, y; brx.idx %r1, t; x: y: ret;", 3, {"target 2 of 2"}});
}

TEST(threads_part_and_meet)
{
    char error[PTX_ERROR_BYTES];
    memset(words, 0, sizeof words);
    /* brx, loops of each lane's own length, a register of a scope, and a vote behind them; lanes
     * that have ended are not waited for. */
    const char *body =
        "mul.wide.u32 %d3, %r1, 4; add.s64 %d3, %d3, %d1; mov.u32 %r4, 0; and.b32 %r3, %r1, 3;\n"
        "t: .branchtargets x, y, z, x;\n"
        "brx.idx %r3, t;\n"
        "x: add.u32 %r4, %r4, 1; setp.lt.u32 %p1, %r4, %r1; @%p1 bra x; bra.uni end;\n"
        "y: mov.u32 %r4, 1000; { .reg .b32 %r<2>; mov.u32 %r1, 5; } bra.uni end;\n"
        "z: setp.gt.u32 %p1, %r1, 16; @%p1 exit; mov.u32 %r4, 2000;\n"
        "end: setp.eq.u32 %p2, 0, 0; vote.sync.ballot.b32 %r5, %p2, -1;\n"
        "add.u32 %r4, %r4, %r5; st.global.u32 [%d3], %r4;";
    if (!run_body(body, 32, 0, error)) fail_msg("%s", error);
    uint32_t live = UINT32_MAX;
    for (uint32_t i = 18; i < 32; i += 4)
        live &= ~(1u << i);
    for (uint32_t i = 0; i < 32; i++) {
        const uint32_t own = (i & 3) == 1 ? 1000 : (i & 3) == 2 ? 2000 : i == 0 ? 1 : i;
        assert_int_equal(words[i], (live >> i & 1) != 0 ? own + live : 0);
    }
    /* A warp that waits for another one's word gets it; barriers of some of the warps. */
    if (!run_body("setp.ge.u32 %p1, %r1, 32; @%p1 bra give;\n"
                  "bar.sync 1, 64; wait: ld.volatile.global.u32 %r3, [%d1+252]; setp.ne.u32 %p2, "
                  "%r3, 9; @%p2 bra wait; bra end;\n"
                  "give: bar.sync 1, 64; setp.eq.u32 %p1, %r1, 40; @%p1 st.global.u32 [%d1+252], "
                  "9; end: ret;",
                  64, 0, error))
        fail_msg("%s", error);
}

TEST(texts_that_are_none)
{
    FAULTS({"frob.u32 %r1, %r2;", 1, {"line 9: frob.u32: no such instruction"}},
           {"add.u8 %r1, %r2, %r3;", 1, {"add.u8: no such"}},
           {"add.ftz.f32 %f1, %f2, %f3;", 1, {"no such"}},
           {"mul.f32 %f1, %f2, %f3;", 1, {"ptxas may contract"}},
           {"add.f16 %h1, %h2, %h3;", 1, {"ptxas may contract"}},
           {"ex2.approx.f32 %f1, %f2;", 1, {"no such"}},
           {"add.u32 %r1, %r2;", 1, {"';' where , is expected"}},
           {"add.u32 %r1, %r2, %r3", 1, {"'}' where ; is expected"}},
           {"add.u32 %r1, %r2, %r9;", 1, {"no register %r9"}},
           {"add.u32 %d1, %r2, %r3;", 1, {"%d1 has 64 bits, not 32"}},
           {"add.u32 %r1, %r2, 0f00000000;", 1, {"a float of another size"}},
           {"bra nowhere;", 1, {"no label nowhere"}}, {"x: x: ret;", 1, {"a second label x"}},
           {"{ x: } bra x;", 1, {"no label x"}}, {"ld.global.u32 %r1, [s];", 1, {"another space"}},
           {"ld.global.u32 %r1, [q];", 1, {"no register or variable q"}},
           {"call f;", 1, {"no function f"}},
           {"mov.u32 %r1, 99999999999999999999;", 1, {"more than 64 bits"}},
           {"mov.f32 %f1, 0f123;", 1, {"a float of 3 digits"}},
           {"cvt.f32.u32 %f1, %r1;", 1, {"no such"}},
           {"setp.lo.s32 %p1, %r1, %r2;", 1, {"no such"}},
           {"mov.b64 %d1, {%r1, %r2, %r3};", 1, {"3 parts"}},
           {"ld.global.u32 %r1, [%r2];", 1, {"an address of 32 bits"}},
           {"/* no end", 1, {"a comment without an end"}},
           {".pragma \"x;", 1, {"a string without an end"}},
           {"add.u32 %r1, %r2, \x01;", 1, {"a character of code 1"}},
           {".reg .b32 %q<99999>;", 1, {"not within"}},
           {".shared .b8 big[16000000];", 1, {"more than 1 MiB"}},
           {"atom.shared.add.s64 %d1, [s], %d2;", 1, {"no such"}},
           {"vote.ballot.b32 %r1, %p1;", 1, {"no such"}});
    static const char *const texts[][2] = {
        {"", "does not begin with .version"},
        {HEAD("9.0"), "version 9.0"},
        {HEAD("7.1"), "version 7.1"},
        {".version 7.0\n.target sm_90\n", "sm_80"},
        {".version 7.0\n.target sm_80\n.address_size 32\n", "address_size"},
        {HEAD("7.0") "frob", "'frob' outside of functions"},
        {HEAD("7.0") ".visible .entry k() { ret;", "line 4"},
        {HEAD("7.0") ".func f() { call g; } .func g() { call f; }", "no function g"},
        {HEAD("7.0") ".func g(); .func f() { call g; ret; } .func g() { call f; ret; } .entry k() "
                     "{ call f; ret; }",
         "in a circle"},
        {HEAD("7.0") ".func g() { .reg .b32 %r<65536>; ret; } .func h() { .reg .b32 %r<65536>; "
                     "ret; } "
                     ".entry k() { .reg .b32 %r<9>; call g; call h; ret; }",
         "k: 131081 registers"},
        {HEAD("7.0") ".global .b8 a[16000000]; .global .b8 b[16000000]; .global .b8 c[16000000]; "
                     ".global .b8 d[16000000]; .global .b8 e[16000000];",
         "64 MiB of global"},
        {HEAD("7.0") ".func g(); .entry k() { call g; ret; }", "g has no body"},
        {HEAD("7.0") ".entry k() { ret; } .entry k() { ret; }", "a second function"},
        {HEAD("7.0") ".extern .func (.param .b32 r) printf(.param .b64 a); .global .u32 x = y;",
         "'y' where a number"},
        {HEAD("7.0") ".global .b8 x[2] = {1, 2, 3};", "more initial values"},
        {HEAD("7.0") ".extern .global .u32 x;", "not of this module"}};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        char error[PTX_ERROR_BYTES] = "";
        assert_null(ptx_open(texts[i][0], strlen(texts[i][0]), error));
        if (strstr(error, texts[i][1]) == NULL) fail_msg("%s: %s", texts[i][0], error);
    }
}

TEST(launches_that_are_none)
{
    ptx_machine *machine = open_text(HEAD("7.0") ".extern .shared .align 16 .b8 d[];\n.entry "
                                                 "k(.param .u32 a) .reqntid 64 { .reg .b32 %r<2>; "
                                                 "ld.param.u32 %r1, [a]; st.shared.u32 [d], %r1; "
                                                 "ret; }\n.entry m() .maxntid 32, 2 { ret; }\n");
    assert_int_equal(ptx_kernels(machine), 2);
    assert_null(ptx_kernel_at(machine, 2));
    const ptx_kernel *kernel = ptx_kernel_at(machine, 0);
    assert_string_equal(kernel->name, "k");
    assert_int_equal(kernel->parameters, 1);
    assert_int_equal(kernel->parameter_bytes[0], 4);
    assert_int_equal(kernel->threads_most, 64);
    const uint32_t value = 1;
    const void *const given[] = {&value}, *const none[] = {NULL};
    const struct {
        ptx_launch launch;
        const char *said;
    } rows[] = {{{.kernel = "x"}, "no kernel x"},
                {{.kernel = NULL}, "no kernel"},
                {{.kernel = "k", .grid = {0, 1, 1}, .block = {64, 1, 1}}, "0 blocks"},
                {{.kernel = "k", .grid = {1, 65536, 1}, .block = {64, 1, 1}},
                 "65536 blocks in direction 1"},
                {{.kernel = "k", .grid = {1, 1, 1}, .block = {32, 1, 1}}, "blocks of 64 threads"},
                {{.kernel = "m", .grid = {1, 1, 1}, .block = {65, 1, 1}}, "m has 64 at most"},
                {{.kernel = "k",
                  .grid = {1, 1, 1},
                  .block = {64, 1, 1},
                  .dynamic_shared_bytes = 300000,
                  .parameters = given},
                 "300000 dynamic"},
                {{.kernel = "k", .grid = {1, 1, 1}, .block = {64, 1, 1}}, "no parameter 0"},
                {{.kernel = "k", .grid = {1, 1, 1}, .block = {64, 1, 1}, .parameters = none},
                 "no parameter 0"},
                {{.kernel = "k", .grid = {1, 1, 1}, .block = {64, 1, 1}, .parameters = given},
                 "outside of every variable"},
                {{.kernel = "k",
                  .grid = {1, 1, 1},
                  .block = {64, 1, 1},
                  .parameters = given,
                  .dynamic_shared_bytes = 16},
                 "thread 0 writes"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char error[PTX_ERROR_BYTES];
        ptx_launch launch = rows[i].launch;
        assert_false(ptx_run(machine, &launch, error));
        if (strstr(error, rows[i].said) == NULL) fail_msg("%s, not %s", error, rows[i].said);
    }
    uint32_t byte = 0;
    const uint64_t address = ptx_map(machine, &byte, sizeof byte, true);
    assert_true(address % 256 == 0 && address != 0);
    ptx_unmap(machine, address);
    ptx_unmap(machine, 1);
    assert_true(ptx_map(machine, &byte, sizeof byte, true) > address);
    assert_true(ptx_map(machine, &byte, 0, true) == 0);
    assert_false(ptx_map_own(machine, &byte, 0, true));
    for (uint32_t i = 0; i < 256; i++)
        assert_true(ptx_map_own(machine, words + i % 64, sizeof byte, true));
    assert_false(ptx_map_own(machine, &byte, sizeof byte, true));
    ptx_unmap(machine, (uint64_t)(uintptr_t)(words + 3));
    assert_true(ptx_map_own(machine, &byte, sizeof byte, true));
    for (uint32_t i = 0; i < 4096; i++)
        ptx_map(machine, &byte, 1, true);
    assert_true(ptx_map(machine, &byte, 1, true) == 0);
}

/* Runs a body with one thread a block, in a machine whose words begin as 0, 1, 2 ... */
static void run_single(const char *body)
{
    char error[PTX_ERROR_BYTES];
    for (uint32_t i = 0; i < 64; i++)
        words[i] = i;
    if (!run_body(body, 1, 0, error)) fail_msg("%s", error);
}

TEST(widths_and_orders_of_memory)
{
    run_single("mov.u32 %r3, 0xf1f2f384; st.shared.u32 [s], %r3; st.global.u32 [%d1+40], %r3;\n"
               "ld.shared.s8 %r4, [s]; st.global.u32 [%d1], %r4;\n"
               "ld.global.u8 %r4, [%d1+43]; st.relaxed.gpu.global.u32 [%d1+4], %r4;\n"
               "ld.volatile.shared.s16 %r4, [%r2+2]; st.release.sys.global.u32 [%d1+8], %r4;\n"
               "ld.global.nc.v2.u8 {%r4, %r5}, [%d1+40]; st.global.v2.u32 [%d1+16], {%r4, %r5};\n"
               "ld.acquire.gpu.global.s32 %d3, [%d1+40]; st.global.wb.u64 [%d1+24], %d3;\n"
               "ldu.global.v4.u16 {%h1, %h2, %h3, _}, [%d1+40]; st.global.cg.u16 [%d1+32], %h2;\n"
               "st.shared.v2.u64 [s+16], {%d3, 7}; ld.shared.b64 %d4, [s+24];\n"
               "st.local.u8 [l+3], %r3; mov.u64 %d5, l; ld.local.u8 %r4, [%d5+3];\n"
               "add.u64 %d4, %d4, 1; st.global.b64 [%d1+48], %d4; st.global.u32 [%d1+56], %r4;");
    static const uint32_t wanted[15] = {0xffffff84, 0xf1,       0xfffff1f2, 3,      0x84,
                                        0xf3,       0xf1f2f384, UINT32_MAX, 0xf1f2, 9,
                                        0xf1f2f384, 11,         8,          0,      0x84};
    assert_memory_equal(words, wanted, sizeof wanted);
}

TEST(atomic_operations)
{
    run_single("atom.global.dec.u32 %r3, [%d1], 9; atom.global.inc.u32 %r3, [%d1+4], 1;\n"
               "atom.global.min.s32 %r3, [%d1+8], -5; atom.global.max.u32 %r4, [%d1+12], -5;\n"
               "red.global.or.b32 [%d1+16], 3; red.relaxed.gpu.global.xor.b32 [%d1+20], 1;\n"
               "atom.relaxed.sys.global.exch.b64 %d3, [%d1+24], 100; st.global.u64 [%d1+32], %d3;\n"
               "atom.global.cas.b16 %h1, [%d1+40], 10, 77; red.global.and.b32 [%d1+44], 10;\n"
               "atom.global.cas.b64 %d4, [%d1+48], 0, 5; red.global.max.s64 [%d1+56], %d4;\n"
               "mov.u64 %d5, s; cvta.shared.u64 %d5, %d5; st.shared.u32 [s], 6; atom.add.u32 %r5, "
               "[%d5], 4;\n"
               "ld.u32 %r6, [%d5]; shl.b32 %r6, %r6, 8; or.b32 %r6, %r6, %r5;\n"
               "st.global.u32 [%d1+64], %r6;");
    /* Two blocks, one after the other. */
    static const uint32_t wanted[17] = {8,  1,  LOW(5), LOW(5), 7,  5,  100,          0, 100, 0,
                                        77, 10, 12,     13,     14, 15, (10 << 8) + 6};
    assert_memory_equal(words, wanted, sizeof wanted);
}

TEST(places_clocks_and_hints)
{
    run_single(
        "mov.u64 %d3, s; cvta.shared.u64 %d3, %d3; mov.u64 %d4, l; cvta.local.u64 %d4, %d4; "
        "mov.u32 %r3, 0;\n"
        "isspacep.shared %p1, %d3; @%p1 or.b32 %r3, %r3, 1;\n"
        "isspacep.local %p1, %d4; @%p1 or.b32 %r3, %r3, 2;\n"
        "isspacep.global %p1, %d1; @%p1 or.b32 %r3, %r3, 4;\n"
        "isspacep.global %p1, %d3; @%p1 or.b32 %r3, %r3, 8;\n"
        "isspacep.shared %p1, %d4; @%p1 or.b32 %r3, %r3, 16;\n"
        "cvta.to.shared.u64 %d3, %d3; cvt.u32.u64 %r4, %d3; setp.eq.u32 %p1, %r4, %r2;\n"
        "@%p1 or.b32 %r3, %r3, 32; st.global.u32 [%d1], %r3;\n"
        "mov.u32 %r3, %ctaid.x; mov.u32 %r4, %nctaid.x; st.global.v2.u32 [%d1+8], {%r3, %r4};\n"
        "mov.u32 %r3, %lanemask_ge; mov.u32 %r4, %nwarpid; st.global.v2.u32 [%d1+16], {%r3, %r4};\n"
        "mov.u64 %d3, %clock64; prefetch.global.L2 [%d1]; membar.gl; fence.sc.gpu;\n"
        "fence.acq_rel.cta; nanosleep.u32 20; mov.u64 %d4, %globaltimer;\n"
        "setp.gt.u64 %p1, %d4, %d3; selp.u32 %r3, 1, 0, %p1; st.global.u32 [%d1+24], %r3;");
    static const uint32_t wanted[7] = {39, 1, 1, 2, UINT32_MAX, 1, 1};
    assert_memory_equal(words, wanted, sizeof wanted);
}

TEST(lanes_apart)
{
    char error[PTX_ERROR_BYTES];
    memset(words, 0, sizeof words);
    /* Each half's own vote and mask, and a barrier that is not aligned in both halves. */
    const char *body =
        "shl.b32 %r7, %r1, 2; cvt.u64.u32 %d3, %r7; add.s64 %d3, %d3, %d1;\n"
        "setp.lt.u32 %p1, %r1, 8; @%p1 bra low;\n"
        "activemask.b32 %r3; setp.eq.u32 %p2, %r1, 9; vote.sync.uni.pred %p3, %p2, 0xffffff00;\n"
        "barrier.sync 0; bra end;\n"
        "low: activemask.b32 %r3; setp.lt.u32 %p2, %r1, 9;\n"
        "vote.sync.uni.pred %p3, !%p2, 0xff; barrier.sync 0;\n"
        "end: selp.u32 %r4, 1, 0, %p3; match.all.sync.b32 %r5|%p4, %r4, -1;\n"
        "@%p4 trap; add.u32 %r4, %r4, %r5; add.u32 %r3, %r3, %r4; st.global.u32 [%d3], %r3;";
    if (!run_body(body, 32, 0, error)) fail_msg("%s", error);
    for (uint32_t i = 0; i < 32; i++)
        assert_int_equal(words[i], i < 8 ? 0x100 : 0xffffff00);
}
