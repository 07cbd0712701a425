/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_codecs_reader.c - records written here are read by tests/format_reader.py, which knows only
 * docs/FORMAT.md: it must decode the same bytes, and refuse what is damaged. Skips when python3 or
 * zstd is absent.
 */
#include "codecs/record_note.h"
#include "codecs_support.h"
#include "groups_support.h"

#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

enum { PATH_BYTES = 512, EXIT_ABSENT = 127 };

typedef struct reader {
    char script[PATH_BYTES];
    char record[PATH_BYTES];
    char output[PATH_BYTES];
} reader;

/* Runs a command with its standard output thrown away; its exit status, EXIT_ABSENT when there is
 * none such. */
static int run_command(char *const arguments[])
{
    pid_t child;
    int status;
    posix_spawn_file_actions_t actions;
    assert_int_equal(posix_spawn_file_actions_init(&actions), 0);
    posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0);
    posix_spawn_file_actions_addopen(&actions, 2, "/dev/null", O_WRONLY, 0);
    int error = posix_spawnp(&child, arguments[0], &actions, NULL, arguments, environ);
    posix_spawn_file_actions_destroy(&actions);
    if (error != 0) return EXIT_ABSENT;
    while (waitpid(child, &status, 0) < 0) {
        assert_int_equal(errno, EINTR);
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static bool command_works(const char *name)
{
    char program[64];
    char version[] = "--version";
    snprintf(program, sizeof program, "%s", name);
    char *arguments[] = {program, version, NULL};
    return run_command(arguments) == 0;
}

static int reader_open(void **state)
{
    static reader paths;
    const char *source = getenv("KVT_SOURCE_DIR");
    const char *folder = getenv("TMPDIR");
    char stem[PATH_BYTES / 2];
    snprintf(paths.script, sizeof paths.script, "%s/tests/format_reader.py", source ? source : ".");
    snprintf(stem, sizeof stem, "%s/kvt_reader_XXXXXX", folder ? folder : "/tmp");
    int file = mkstemp(stem);
    if (file < 0) return -1;
    close(file);
    snprintf(paths.record, sizeof paths.record, "%s", stem);
    snprintf(paths.output, sizeof paths.output, "%s.out", stem);
    *state = &paths;
    return 0;
}

TEST_AFTER_ALL
{
    const reader *paths = *state;
    unlink(paths->record);
    unlink(paths->output);
}

static void need_tools(const reader *paths)
{
    if (access(paths->script, R_OK) != 0 || !command_works("python3") || !command_works("zstd")) {
        print_message("skipped: needs the source tree, python3 and the zstd command\n");
        skip();
    }
}

static void write_record(const reader *paths, const encoded *e)
{
    FILE *file = fopen(paths->record, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(e->record.data, 1, e->record.bytes, file), e->record.bytes);
    assert_int_equal(fclose(file), 0);
}

static int run_reader(reader *paths)
{
    char program[] = "python3";
    char option[] = "--raw";
    char *arguments[] = {program, paths->script, paths->record, option, paths->output, NULL};
    unlink(paths->output);
    return run_command(arguments);
}

static void check_reads_the_same(reader *paths, kvt_layout layout, const char *variant,
                                 const void *source)
{
    encoded e = encoded_make(layout, variant, source);
    write_record(paths, &e);
    assert_int_equal(run_reader(paths), 0);
    FILE *file = fopen(paths->output, "rb");
    assert_non_null(file);
    uint64_t got = fread(e.decoded.data, 1, e.source.bytes + 1, file);
    fclose(file);
    assert_int_equal(got, e.source.bytes);
    assert_memory_equal(e.decoded.data, e.source.data, e.source.bytes);
}

TEST_ALL(reader_open, NULL);

TEST(reader_decodes_every_dtype)
{
    static const uint8_t dtypes[] = {KVT_DTYPE_BF16, KVT_DTYPE_FP16, KVT_DTYPE_FP32, KVT_DTYPE_FP8};
    static const char *const variants[] = {"raw", "lossless"};
    need_tools(*state);
    for (unsigned i = 0; i < 8; i++) {
        kvt_layout layout = {.layers = 2,
                             .kv_heads = 3,
                             .head_dim = 16,
                             .dtype = dtypes[i / 2],
                             .order = (uint8_t)(i / 2 % 2),
                             .tokens = 90};
        check_reads_the_same(*state, layout, variants[i % 2], NULL);
    }
}

TEST(reader_decodes_several_tiles)
{
    const kvt_layout layout = {
        .layers = 1, .kv_heads = 9, .head_dim = 128, .dtype = KVT_DTYPE_BF16, .tokens = 300};
    need_tools(*state);
    check_reads_the_same(*state, layout, "lossless", NULL);
}

TEST(reader_decodes_opaque_pieces)
{
    const kvt_layout layout = {.dtype = KVT_DTYPE_OPAQUE, .opaque_bytes = 8388608 + 700000};
    uint8_t *source = test_alloc(layout.opaque_bytes);
    need_tools(*state);
    for (uint64_t i = 0; i < layout.opaque_bytes; i++) {
        source[i] = (uint8_t)((i >> 9) * 37 + i % 3);
    }
    check_reads_the_same(*state, layout, "lossless", source);
}

TEST(reader_refuses_damage)
{
    static const uint64_t places[] = {9, 40, 170, 3000, 4095, 5000, 8200, 12000, 12300};
    const kvt_layout layout = {
        .layers = 1, .kv_heads = 1, .head_dim = 32, .dtype = KVT_DTYPE_BF16, .tokens = 80};
    need_tools(*state);
    encoded e = encoded_make(layout, "lossless", NULL);
    for (size_t i = 0; i < sizeof places / sizeof places[0] + 1; i++) {
        bool last = i == sizeof places / sizeof places[0];
        uint64_t place = last ? e.record.bytes - 1 : places[i];
        e.record.data[place] ^= 4;
        write_record(*state, &e);
        assert_int_equal(run_reader(*state), 1);
        e.record.data[place] ^= 4;
    }
    write_record(*state, &e);
    assert_int_equal(run_reader(*state), 0);
}

/* Reads the record and compares with what the library decodes from it. */
static void check_values(reader *paths, const encoded *e)
{
    kvt_record_info info;
    assert_status(kvt_record_parse(e->record.data, e->record.bytes, &info), KVT_OK);
    guarded wanted = guarded_make(info.decoded_bytes);
    guarded got = guarded_make(info.decoded_bytes + 1);
    assert_status(kvt_record_decode(e->record.data, e->record.bytes, NULL, wanted.data,
                                    wanted.bytes, e->scratch.data, e->scratch.bytes),
                  KVT_OK);
    write_record(paths, e);
    assert_int_equal(run_reader(paths), 0);
    FILE *file = fopen(paths->output, "rb");
    assert_non_null(file);
    assert_int_equal(fread(got.data, 1, got.bytes, file), wanted.bytes);
    fclose(file);
    assert_memory_equal(got.data, wanted.data, wanted.bytes);
}

static kvt_layout layout_of(unsigned i)
{
    const kvt_layout layout = {.layers = 2,
                               .kv_heads = 3,
                               .head_dim = 24,
                               .dtype = (uint8_t)(KVT_DTYPE_FP16 + i % 3),
                               .order = (uint8_t)(i % 2),
                               .tokens = 75,
                               .tokens_may_drop = 1};
    return layout;
}

TEST(reader_decodes_groups_and_drops)
{
    static const char *const variants[] = {"kivi:k2v8,g32",
                                           "kivi:k4v4,g64,r64",
                                           "kivi:k8v2,g128,half",
                                           "planes:k8v8,g64",
                                           "planes:k6v3,g32,vhead",
                                           "planes:k2v4,g64,vchan,vfirst",
                                           "planes:k3v2",
                                           "drop:stream,50",
                                           "drop:knorm,25+planes:k4v6",
                                           "drop:keydiff,75+kivi:k4v4",
                                           "drop:stream,50+lossless"};
    need_tools(*state);
    for (unsigned i = 0; i < 2 * (sizeof variants / sizeof variants[0]); i++) {
        kvt_layout layout = layout_of(i / 2);
        if (i % 4 == 3) continue; /* every second one with one side, K or V, too */
        layout.sides = i % 2;
        if (layout.sides == 1) layout.tokens = 44;
        if (i % 8 == 1 && strncmp(variants[i / 2], "drop", 4) != 0) layout.sides = KVT_SIDES_V;
        encoded e = encoded_make(layout, variants[i / 2], NULL);
        check_values(*state, &e);
    }
}

/* As bf16 of the same values, rounded to E4M3 when they come back. */
TEST(reader_decodes_groups_of_fp8)
{
    static const char *const variants[] = {"kivi:k2v4,g32", "kivi:k4v2,g64,half", "planes:k6v4,g64",
                                           "planes:k3v2,g32,vhead"};
    need_tools(*state);
    for (unsigned i = 0; i < sizeof variants / sizeof variants[0]; i++) {
        kvt_layout layout = layout_of(i);
        layout.dtype = KVT_DTYPE_FP8;
        encoded e = encoded_make(layout, variants[i], NULL);
        assert_status(e.status, KVT_OK);
        check_values(*state, &e);
    }
}

/* Without the extension, too; the flag alone says so. */
TEST(reader_decodes_one_side)
{
    static const char *const variants[] = {"raw", "lossless", "raw", "lossless"};
    need_tools(*state);
    for (unsigned i = 0; i < 4; i++) {
        kvt_layout layout = layout_of(i);
        layout.sides = 1;
        layout.layers = 3;
        if (i == 2) layout.head_dim = 576; /* layers that end runs */
        encoded e = encoded_make(layout, variants[i], NULL);
        check_values(*state, &e);
    }
}

/* Its other slot and table count; a matrix that cannot be coded is raw in it. */
TEST(reader_follows_dropped_planes)
{
    static const char *const fewer[] = {"planes:k6v8", "planes:k6v2", "planes:k2v2"};
    uint64_t bytes;
    const kvt_layout layout = layout_of(0);
    need_tools(*state);
    assert_status(kvt_layout_bytes(&layout, &bytes), KVT_OK);
    uint8_t *source = test_alloc(bytes);
    codecs_kv_sample_fill(&layout, 8, source);
    memset(source + kvt_layout_matrix_bytes(&layout), 0x7c, 2); /* not finite */
    encoded e = encoded_make(layout, "planes:k8v8", source);
    for (size_t i = 0; i < sizeof fewer / sizeof fewer[0]; i++) {
        kvt_variant variant;
        kvt_record_drop drop;
        assert_status(kvt_variant_parse(fewer[i], &variant), KVT_OK);
        assert_status(kvt_record_drop_planes(e.record.data, e.record.bytes, variant, &drop),
                      KVT_OK);
        e.record.bytes = drop.record_bytes;
        check_values(*state, &e);
    }
}

/* Header, table, parts and checksums of these are read; their values are not. */
TEST(reader_checks_records_of_other_codecs)
{
    static const char *const variants[] = {"entropy:k0.5v1,vchan", "drop:stream,50+entropy",
                                           "lossless:fast"};
    need_tools(*state);
    for (unsigned i = 0; i < 3; i++) {
        encoded e = encoded_make(layout_of(i), variants[i], NULL);
        write_record(*state, &e);
        assert_int_equal(run_reader(*state), 77);
        e.record.data[e.record.bytes - 1] ^= 1;
        write_record(*state, &e);
        assert_int_equal(run_reader(*state), 1);
    }
}

/* A note changes nothing of what is read, with the extension and without, in either slot. */
TEST(reader_reads_records_with_notes)
{
    static const char *const variants[] = {"raw", "lossless", "kivi:k4v4,g64,r64",
                                           "planes:k8v8,g64"};
    uint8_t note[120];
    kvt_record_drop drop;
    kvt_variant fewer;
    need_tools(*state);
    memset(note, 0x5c, sizeof note);
    assert_status(kvt_variant_parse("planes:k6v2", &fewer), KVT_OK);
    for (unsigned i = 0; i < 5; i++) {
        encoded e = encoded_make(layout_of(0), variants[i < 4 ? i : 3], NULL);
        assert_status(record_note_set(e.record.data, note, sizeof note), KVT_OK);
        if (i == 4) {
            assert_status(kvt_record_drop_planes(e.record.data, e.record.bytes, fewer, &drop),
                          KVT_OK);
            e.record.bytes = drop.record_bytes;
            assert_status(record_note_set(e.record.data, note, 48), KVT_OK);
        }
        check_values(*state, &e);
        e.record.data[i == 4 ? 4096 + 300 : 300] ^= 1;
        write_record(*state, &e);
        assert_int_equal(run_reader(*state), 1);
    }
}

/* Heads of groups, each group's record, and what contradicts. */
TEST(reader_reads_groups)
{
    static const char *const variants[][2] = {{"raw", "raw"},
                                              {"lossless", "lossless"},
                                              {"planes:k4v3,g64", "lossless"},
                                              {"kivi:k2v8,g32", "raw"}};
    static const uint64_t places[] = {9, 80, 3000, 8216, 8300, 12300, 16400};
    uint8_t note[64];
    need_tools(*state);
    memset(note, 0x5c, sizeof note);
    for (unsigned i = 0; i < 8; i++) {
        grouped g;
        kvt_layout shapes[GROUPS_SHAPES];
        memcpy(shapes, groups_shapes, sizeof shapes);
        if (i == 5) shapes[2].sides = KVT_SIDES_V;
        grouped_make(&g, shapes, i % 2 == 0 ? 2 : GROUPS_SHAPES, variants[i / 2][0],
                     variants[i / 2][1]);
        if (i % 3 == 0) assert_status(record_note_set(g.record.data, note, sizeof note), KVT_OK);
        const encoded e = {.record = g.record, .scratch = g.scratch};
        check_values(*state, &e);
        if (i == 5) {
            for (size_t k = 0; k < sizeof places / sizeof places[0]; k++) {
                g.record.data[places[k]] ^= 1;
                write_record(*state, &e);
                assert_int_equal(run_reader(*state), 1);
                g.record.data[places[k]] ^= 1;
            }
        }
    }
}
