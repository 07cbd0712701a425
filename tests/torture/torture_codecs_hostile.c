/* SPDX-License-Identifier: Apache-2.0 */
/*
 * torture_codecs_hostile.c - every codec, every instruction set and odd shapes between guard pages:
 * encoders and decoders touch nothing outside their buffers, do not depend on what memory held
 * before, and give the same bytes everywhere. Then damaged parts and damaged records with right
 * checksums, so that decoders are tried and not checksums: they are refused, or all instruction
 * sets make the same of them. Under AddressSanitizer buffers end to the byte. Single thread.
 *
 *   torture_codecs_hostile [TIMES [SEED]]   TIMES as much damage, another sequence of it
 */
#include "codecs_support.h"

#include "codecs/kernels/cpu.h"
#include "codecs/record_format.h"

#include <sys/mman.h>

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define HOSTILE_POISON 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__)
#define HOSTILE_POISON 1
#endif
#ifdef HOSTILE_POISON
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(address, size)   ((void)(address), (void)(size))
#define ASAN_UNPOISON_MEMORY_REGION(address, size) ((void)(address), (void)(size))
#endif

enum {
    HOSTILE_PAGE = 4096,
    HOSTILE_ALIGN = 64,
    HOSTILE_PARTS = 16,   /* damaged sets of parts a matrix */
    HOSTILE_RECORDS = 10, /* damaged records a case */
    HOSTILE_LONGER = 16,  /* bytes that a part may grow */
    HOSTILE_DECODED_MAX = 1 << 22
};

static uint32_t hostile_times = 1;
static uint64_t hostile_state = UINT64_C(0x9e3779b97f4a7c15);

static uint64_t hostile_random(uint64_t below)
{
    hostile_state ^= hostile_state << 13;
    hostile_state ^= hostile_state >> 7;
    hostile_state ^= hostile_state << 17;
    return hostile_state % below;
}

/* ---- buffers ---- */

/* Memory between two pages that nobody may touch; data is placed in it. */
typedef struct fenced {
    uint8_t *room;
    uint64_t room_bytes;
    uint8_t *data;
    uint64_t bytes;
} fenced;

static fenced fenced_make(uint64_t most)
{
    fenced f = {.room_bytes = (most + HOSTILE_ALIGN + HOSTILE_PAGE) / HOSTILE_PAGE * HOSTILE_PAGE};
    uint8_t *map =
        mmap(NULL, f.room_bytes + 2 * HOSTILE_PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(map != MAP_FAILED);
    f.room = map + HOSTILE_PAGE;
    assert_int_equal(mprotect(f.room, f.room_bytes, PROT_READ | PROT_WRITE), 0);
    return f;
}

static void fenced_free(fenced *f)
{
    ASAN_UNPOISON_MEMORY_REGION(f->room, f->room_bytes);
    assert_int_equal(munmap(f->room - HOSTILE_PAGE, f->room_bytes + 2 * HOSTILE_PAGE), 0);
}

/* Places `bytes` so that they end at the guard page, as far as the alignment allows; align 0:
 * they begin behind the one in front. The content is `fill`. */
static void fenced_place(fenced *f, uint64_t bytes, uint64_t align, int fill)
{
    assert_true(bytes <= f->room_bytes);
    ASAN_UNPOISON_MEMORY_REGION(f->room, f->room_bytes);
    f->bytes = bytes;
    f->data = f->room;
    if (align != 0) f->data += (f->room_bytes - bytes) & ~(align - 1);
    memset(f->data, fill, bytes);
    ASAN_POISON_MEMORY_REGION(f->room, (uint64_t)(f->data - f->room));
    ASAN_POISON_MEMORY_REGION(f->data + bytes,
                              f->room_bytes - bytes - (uint64_t)(f->data - f->room));
}

/* ---- cases ---- */

static const char *const variants[] = {
    "raw",
    "lossless",
    "lossless:fast",
    "kivi:k2v8,g32,r32",
    "kivi:k4v4,g64",
    "kivi:k8v2,g128,half",
    "planes:k8v6,g64",
    "planes:k4v3,g32,vchan",
    "planes:k2v8,g128,vhead,vfirst",
    "planes:k3v4,g32",
    "entropy:k0.25v0.5",
    "entropy:k0.75v0.1,vchan,middle",
    "drop:stream,50",
    "drop:keydiff,50+planes:k4v2",
    "drop:knorm,75+entropy:k0.5v0.5",
};

typedef struct shape {
    uint16_t heads;
    uint16_t dim;
    uint32_t tokens;
} shape;

static const shape shapes[] = {{1, 8, 1},   {1, 8, 63},   {3, 24, 65}, {1, 80, 63},
                               {2, 80, 65}, {1, 136, 65}, {2, 64, 33}, {8, 128, 1}};

/* Targets of this size are written past the caches. */
static const shape large[] = {{1, 136, 1100}, {2, 128, 1030}};

/* One entry, its record, what it decodes to, and room for trying. */
typedef struct hostile_case {
    kvt_record_spec spec;
    uint64_t source_bytes;
    uint64_t bound;
    uint64_t scratch_bytes;
    uint64_t record_bytes;
    uint64_t decoded_bytes;
    fenced source;
    fenced record; /* of the scalar level */
    fenced decoded;
    fenced scratch;
    fenced other; /* record of another level, or damaged */
    fenced target;
} hostile_case;

static void case_encode(hostile_case *c, codecs_cpu level, fenced *record, int fill)
{
    codecs_cpu_force(level);
    fenced_place(record, c->bound, HOSTILE_ALIGN, fill);
    fenced_place(&c->scratch, c->scratch_bytes, HOSTILE_ALIGN, fill);
    kvt_status status =
        kvt_record_encode(&c->spec, c->source.data, c->source_bytes, record->data, c->bound,
                          c->scratch.data, c->scratch_bytes, &c->record_bytes);
    assert_true(status == KVT_OK || status == KVT_RAW);
    assert_true(c->record_bytes <= c->bound);
}

/* Decodes on every level into targets at both ends of their room. */
static void case_decode(hostile_case *c)
{
    for (int level = CODECS_CPU_SCALAR; level <= (int)codecs_cpu_best(); level++) {
        codecs_cpu_force((codecs_cpu)level);
        for (uint64_t align = 0; align <= 1; align++) {
            fenced_place(&c->target, c->decoded_bytes, align, 0xa5 + level);
            fenced_place(&c->scratch, c->scratch_bytes, HOSTILE_ALIGN, 0x5a - level);
            assert_status(kvt_record_decode(c->record.data, c->record_bytes, &c->spec,
                                            c->target.data, c->decoded_bytes, c->scratch.data,
                                            c->scratch_bytes),
                          KVT_OK);
            if (level == CODECS_CPU_SCALAR && align == 0) {
                fenced_place(&c->decoded, c->decoded_bytes, 1, 0);
                memcpy(c->decoded.data, c->target.data, c->decoded_bytes);
            }
            assert_memory_equal(c->decoded.data, c->target.data, c->decoded_bytes);
        }
    }
}

/* False when the codec does not take the layout. */
static bool case_open(hostile_case *c, const kvt_layout *layout, const char *variant)
{
    kvt_record_info info;
    memset(c, 0, sizeof *c);
    c->spec = codecs_support_spec(*layout, variant);
    c->spec.layout.tokens_may_drop = c->spec.variant.mode >> 8 != 0;
    assert_status(kvt_layout_bytes(layout, &c->source_bytes), KVT_OK);
    if (kvt_record_bound(&c->spec, &c->bound, &c->scratch_bytes) != KVT_OK) return false;
    c->source = fenced_make(c->source_bytes);
    c->record = fenced_make(c->bound);
    c->decoded = fenced_make(c->source_bytes);
    c->scratch = fenced_make(c->scratch_bytes);
    c->other = fenced_make(c->bound);
    c->target = fenced_make(c->source_bytes);
    fenced_place(&c->source, c->source_bytes, 1, 0);
    codecs_kv_sample_fill(layout, 5, c->source.data);
    case_encode(c, CODECS_CPU_SCALAR, &c->record, 0xff);
    const uint64_t first = c->record_bytes;
    for (int level = CODECS_CPU_AVX2; level <= (int)codecs_cpu_best(); level++) {
        case_encode(c, (codecs_cpu)level, &c->other, level);
        assert_int_equal(c->record_bytes, first);
        assert_memory_equal(c->record.data, c->other.data, first);
    }
    assert_status(kvt_record_verify(c->record.data, first, &info), KVT_OK);
    c->decoded_bytes = info.decoded_bytes;
    case_decode(c);
    return true;
}

/* ---- damage ---- */

/* One to four edits; sizes and counts are most often near the ends. */
static void damage(uint8_t *bytes, uint64_t count)
{
    static const uint32_t words[] = {0, 1, 0x7fffffff, 0x80000000, 0xffffffff, 0xffff, 0x100};
    if (count == 0) return;
    for (uint64_t edits = 1 + hostile_random(4); edits > 0; edits--) {
        const uint64_t near = count < 48 ? count : 48;
        uint64_t at = hostile_random(count);
        if (hostile_random(2) == 0) at = hostile_random(near);
        if (hostile_random(8) == 0) at = count - 1 - hostile_random(near);
        switch (hostile_random(6)) {
        case 0: bytes[at] = 0; break;
        case 1: bytes[at] = 0xff; break;
        case 2: bytes[at] ^= (uint8_t)(1u << hostile_random(8)); break;
        case 3: bytes[at] = (uint8_t)(bytes[at] + 1); break;
        case 4:
            if (count - at >= sizeof words[0]) {
                memcpy(bytes + at, &words[hostile_random(7)], sizeof words[0]);
            }
            break;
        default: bytes[at] = (uint8_t)hostile_random(256); break;
        }
    }
}

/* One matrix or piece, as its codec gets it. */
typedef struct hostile_parts {
    record_plan plan;
    const kvt_codec *codec;
    kvt_variant variant;
    kvt_layout layout;
    kvt_matrix matrix;
    uint32_t count;
    record_segment segments[KVT_PARTS_MAX];
    fenced stored[KVT_PARTS_MAX];
    uint64_t target_bytes;
    uint64_t scratch_bytes;
} hostile_parts;

/* The coded segments of a matrix of the first layer; false when it is stored raw. */
static bool parts_open(const hostile_case *c, kvt_side side, hostile_parts *p)
{
    record_parsed parsed;
    record_matrix found;
    kvt_part listed[KVT_PARTS_MAX];
    memset(p, 0, sizeof *p);
    assert_status(record_parse(c->record.data, c->record_bytes, RECORD_DEPTH_LOAD, &parsed, NULL),
                  KVT_OK);
    p->plan = parsed.plan;
    p->codec = parsed.plan.codec;
    p->variant = parsed.plan.variant;
    p->layout = parsed.plan.stored;
    if (parsed.plan.parts) {
        record_matrix_collect(parsed.table, &parsed.sections, 0, side, &found);
        record_matrix_parts(&parsed.plan, 0, side, &p->matrix, listed, &p->count);
        assert_int_equal(p->count, found.part_count);
        memcpy(p->segments, found.parts, sizeof p->segments);
        p->target_bytes = p->matrix.tokens * record_row_bytes(&parsed.plan);
        if (p->count != 0) p->scratch_bytes = record_code_scratch(&p->plan, &p->matrix);
    } else {
        const uint64_t index = parsed.plan.extension.index_count + (uint64_t)side;
        memcpy(p->segments, parsed.table + index * sizeof p->segments[0], sizeof p->segments[0]);
        p->count = p->segments[0].kind == KVT_PART_CODED;
        p->target_bytes = p->segments[0].raw_bytes;
        p->scratch_bytes =
            p->codec->id == KVT_CODEC_RAW
                ? 0
                : p->codec->segment_scratch(p->variant, &p->layout, p->segments[0].raw_bytes);
    }
    for (uint32_t i = 0; i < p->count; i++) {
        p->stored[i] = fenced_make(p->segments[i].stored_bytes + HOSTILE_LONGER);
    }
    return p->count != 0;
}

/* Brings the sound parts to their places, one of them longer or shorter where sizes may differ, and
 * damages one. */
static void parts_damage(const hostile_case *c, hostile_parts *p)
{
    const bool sizes = (p->codec->flags & KVT_CODEC_FLAG_FIXED) == 0;
    const uint64_t kind = hostile_random(sizes ? 8 : 6);
    for (uint32_t i = 0; i < p->count; i++) {
        const uint64_t sound = p->segments[i].stored_bytes;
        uint64_t bytes = sound;
        if (kind == 6) bytes = hostile_random(sound);
        if (kind == 7) bytes = sound + 1 + hostile_random(HOSTILE_LONGER);
        fenced_place(&p->stored[i], bytes, HOSTILE_ALIGN, (int)hostile_random(256));
        memcpy(p->stored[i].data, c->record.data + p->segments[i].offset,
               bytes < sound ? bytes : sound);
    }
    if (kind >= 6 && hostile_random(2) == 0) return;
    fenced *one = &p->stored[hostile_random(p->count)];
    damage(one->data, one->bytes);
}

static kvt_status parts_decode(hostile_case *c, hostile_parts *p, uint8_t *target)
{
    const view_rows rows = view_rows_packed(target, p->target_bytes);
    fenced_place(&c->scratch, p->scratch_bytes, HOSTILE_ALIGN, (int)hostile_random(256));
    if (!(p->codec->flags & KVT_CODEC_FLAG_PARTS)) {
        return p->codec->decode_segment(p->variant, &p->layout, p->stored[0].data,
                                        p->stored[0].bytes, &rows, c->scratch.data,
                                        p->scratch_bytes);
    }
    kvt_part parts[KVT_PARTS_MAX] = {0};
    for (uint32_t i = 0; i < p->count; i++) {
        parts[i].kind = p->segments[i].kind;
        parts[i].plane = p->segments[i].plane;
        parts[i].bytes = p->stored[i].bytes;
        parts[i].data = p->stored[i].data;
    }
    const view_rows *wanted = &rows;
    return record_code_decode(&p->plan, &p->matrix, parts, &wanted, c->scratch.data,
                              p->scratch_bytes);
}

/* Decodes damaged parts of a matrix on every level: one status, and the same bytes if that is OK.
 */
static void case_damage_parts(hostile_case *c, kvt_side side, uint32_t times)
{
    hostile_parts p;
    char name[64];
    const bool coded = parts_open(c, side, &p);
    kvt_variant_format(c->spec.variant, name, sizeof name);
    for (uint32_t i = 0; coded && i < times; i++) {
        kvt_status first = KVT_OK;
        parts_damage(c, &p);
        for (int level = CODECS_CPU_SCALAR; level <= (int)codecs_cpu_best(); level++) {
            codecs_cpu_force((codecs_cpu)level);
            fenced *target = level == CODECS_CPU_SCALAR ? &c->decoded : &c->target;
            fenced_place(target, p.target_bytes, i % 2, (int)hostile_random(256));
            kvt_status status = parts_decode(c, &p, target->data);
            if (level == CODECS_CPU_SCALAR) first = status;
            const bool allowed = status == KVT_OK || status == KVT_E_CORRUPT;
            if (!allowed || status != first ||
                (status == KVT_OK && memcmp(c->decoded.data, target->data, p.target_bytes) != 0)) {
                fail_msg("%s, dtype %u, [%u][%u][%u]: %s is %s, scalar %s", name,
                         c->spec.layout.dtype, (unsigned)c->spec.layout.tokens,
                         c->spec.layout.kv_heads, c->spec.layout.head_dim,
                         codecs_cpu_name((codecs_cpu)level), kvt_status_name(status),
                         kvt_status_name(first));
            }
        }
    }
    for (uint32_t i = 0; i < p.count; i++) {
        fenced_free(&p.stored[i]);
    }
}

/* Makes every checksum right that lies where the header in slot A and its table say. */
static void record_seal(uint8_t *record, uint64_t bytes)
{
    record_header header;
    memcpy(&header, record, sizeof header);
    for (uint64_t i = 0; i < header.segment_count; i++) {
        const uint64_t at = RECORD_TABLE_OFFSET + i * sizeof(record_segment);
        if (at + sizeof(record_segment) > bytes) break;
        record_segment segment = record_segment_at(record, (uint32_t)i);
        if (segment.offset > bytes || segment.padded_bytes > bytes - segment.offset) continue;
        segment.checksum = checksum_of(record + segment.offset, segment.padded_bytes);
        memcpy(record + at, &segment, sizeof segment);
    }
    if (header.table_bytes <= bytes - RECORD_TABLE_OFFSET) {
        header.table_checksum = checksum_of(record + RECORD_TABLE_OFFSET, header.table_bytes);
        memcpy(record, &header, sizeof header);
    }
    const uint64_t checksum = checksum_of(record, RECORD_CHECKSUM_AT);
    memcpy(record + RECORD_CHECKSUM_AT, &checksum, sizeof checksum);
}

/* Damages payload, header or table of the record in `other`. */
static void record_damage(const hostile_case *c)
{
    uint8_t *record = c->other.data;
    record_header header;
    memcpy(&header, record, sizeof header);
    switch (hostile_random(4)) {
    case 0: damage(record + 64, sizeof(record_header) - 64 + sizeof(record_extension) + 2); break;
    case 1:
        damage(record + RECORD_TABLE_OFFSET, header.segment_count * sizeof(record_segment));
        break;
    default: {
        record_segment segment =
            record_segment_at(record, (uint32_t)hostile_random(header.segment_count));
        damage(record + segment.offset, segment.stored_bytes);
        break;
    }
    }
    record_seal(record, c->record_bytes);
}

static void run_all(void *context, uint32_t tasks, kvt_codec_task task, void *argument)
{
    const kvt_codec_workers *workers = context;
    for (uint32_t i = 0; i < tasks; i++) {
        task(argument, i, i % workers->count);
    }
}

/* What reads records, on one that parses. */
static void record_use(hostile_case *c, const kvt_record_info *info)
{
    kvt_codec_workers workers = {sizeof workers, 2, run_all, &workers};
    const uint64_t bytes = c->record_bytes;
    const uint64_t lane = codecs_align(info->scratch_bytes, HOSTILE_ALIGN);
    if (info->decoded_bytes > HOSTILE_DECODED_MAX || lane > HOSTILE_DECODED_MAX) return;
    fenced one = fenced_make(info->decoded_bytes);
    fenced two = fenced_make(info->decoded_bytes);
    fenced scratch = fenced_make(2 * lane);
    fenced_place(&one, info->decoded_bytes, 1, 1);
    fenced_place(&two, info->decoded_bytes, 1, 2);
    fenced_place(&scratch, info->scratch_bytes, HOSTILE_ALIGN, 3);
    kvt_status status = kvt_record_decode(c->other.data, bytes, NULL, one.data, one.bytes,
                                          scratch.data, scratch.bytes);
    assert_true(status == KVT_OK || status == KVT_E_CORRUPT);
    fenced_place(&scratch, 2 * lane, HOSTILE_ALIGN, 4);
    kvt_status again = kvt_record_decode_parallel(c->other.data, bytes, NULL, &workers, two.data,
                                                  two.bytes, scratch.data, scratch.bytes);
    assert_int_equal(status, again);
    if (status == KVT_OK) assert_memory_equal(one.data, two.data, one.bytes);
    if (info->spec.layout.dtype != KVT_DTYPE_OPAQUE) {
        fenced_place(&two,
                     info->stored_tokens * sizeof(uint32_t) <= two.room_bytes
                         ? info->stored_tokens * sizeof(uint32_t)
                         : 0,
                     sizeof(uint32_t), 5);
        if (two.bytes > 0) {
            again = kvt_record_kept_tokens(c->other.data, bytes, 0, (uint32_t *)(void *)two.data,
                                           info->stored_tokens);
            assert_true(again == KVT_OK || again == KVT_E_CORRUPT);
        }
    }
    fenced_free(&one);
    fenced_free(&two);
    fenced_free(&scratch);
}

/* What makes records of records. The steps of entropy are tripled, planes are dropped. */
static void record_shrink(hostile_case *c, const kvt_record_info *info)
{
    kvt_variant less = info->spec.variant;
    kvt_record_drop drop;
    uint64_t written;
    if (less.codec == KVT_CODEC_ENTROPY) {
        const uint32_t k = less.rate & 1023;
        const uint32_t v = less.rate >> 10 & 1023;
        less.rate = (less.rate & ~0xfffffu) | 3 * k % 1024 | (3 * v % 1024) << 10;
        fenced_place(&c->target, c->source_bytes, HOSTILE_ALIGN, 7);
        fenced_place(&c->scratch, c->scratch_bytes, HOSTILE_ALIGN, 7);
        fenced target = fenced_make(c->bound);
        fenced_place(&target, c->bound, HOSTILE_ALIGN, 7);
        kvt_status status =
            kvt_record_derive(c->other.data, c->record_bytes, NULL, less, target.data, target.bytes,
                              c->scratch.data, c->scratch_bytes, &written);
        if (status == KVT_OK) {
            kvt_record_info derived;
            assert_status(kvt_record_verify(target.data, written, &derived), KVT_OK);
        }
        fenced_free(&target);
    }
    if (less.codec == KVT_CODEC_PLANES) {
        less.rate = (less.rate & ~63u) | 9; /* one plane each */
        kvt_status status = kvt_record_drop_planes(c->other.data, c->record_bytes, less, &drop);
        kvt_record_info smaller;
        if (status == KVT_OK) {
            assert_status(kvt_record_parse(c->other.data, drop.record_bytes, &smaller), KVT_OK);
            assert_int_equal(smaller.spec.variant.rate, less.rate);
        }
    }
}

static void run_case(const kvt_layout *layout, const char *variant, uint32_t share)
{
    hostile_case c;
    if (!case_open(&c, layout, variant)) return;
    const uint32_t times = hostile_times * HOSTILE_PARTS / share;
    case_damage_parts(&c, KVT_SIDE_K, times);
    if (layout->dtype != KVT_DTYPE_OPAQUE && kvt_layout_sides(layout) == 2)
        case_damage_parts(&c, KVT_SIDE_V, times);
    for (uint32_t i = 0; i < (hostile_times * HOSTILE_RECORDS / share); i++) {
        kvt_record_info info;
        codecs_cpu_force((codecs_cpu)(i % 3));
        fenced_place(&c.other, c.record_bytes, HOSTILE_ALIGN, 0);
        memcpy(c.other.data, c.record.data, c.record_bytes);
        record_damage(&c);
        const kvt_status verified = kvt_record_verify(c.other.data, c.record_bytes, &info);
        const kvt_status parsed = kvt_record_parse(c.other.data, c.record_bytes, &info);
        assert_true(parsed == KVT_OK || parsed == KVT_E_CORRUPT || parsed == KVT_E_VERSION);
        assert_true(verified != KVT_OK || parsed == KVT_OK);
        if (parsed != KVT_OK) continue;
        record_use(&c, &info);
        record_shrink(&c, &info);
    }
    fenced_free(&c.source);
    fenced_free(&c.record);
    fenced_free(&c.decoded);
    fenced_free(&c.scratch);
    fenced_free(&c.other);
    fenced_free(&c.target);
}

static void run_shapes(const shape *list, size_t count, uint32_t share)
{
    static const uint8_t dtypes[] = {KVT_DTYPE_FP16, KVT_DTYPE_BF16, KVT_DTYPE_FP32, KVT_DTYPE_FP8};
    static const uint8_t sides[] = {0, KVT_SIDES_ONE, 0, KVT_SIDES_V, 0};
    for (size_t s = 0; s < count; s++) {
        for (size_t d = 0; d < sizeof dtypes; d++) {
            const kvt_layout layout = {.layers = 2,
                                       .kv_heads = list[s].heads,
                                       .head_dim = list[s].dim,
                                       .dtype = dtypes[d],
                                       .order = (uint8_t)(d % 2),
                                       .sides = sides[(s + d) % sizeof sides],
                                       .tokens = list[s].tokens};
            for (size_t v = 0; v < sizeof variants / sizeof variants[0]; v++) {
                run_case(&layout, variants[v], share);
            }
        }
    }
}

TEST(odd_shapes)
{
    run_shapes(shapes, sizeof shapes / sizeof shapes[0], 1);
}

TEST(streamed_targets)
{
    run_shapes(large, sizeof large / sizeof large[0], 10);
}

TEST(opaque_entries)
{
    static const uint64_t sizes[] = {1, 63, 4097, 300001};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        const kvt_layout layout = {.dtype = KVT_DTYPE_OPAQUE, .opaque_bytes = sizes[i]};
        run_case(&layout, "raw", 2);
        run_case(&layout, "lossless", 2);
    }
}

int main(int count, char **arguments)
{
    if (count > 1) hostile_times = (uint32_t)strtoul(arguments[1], NULL, 10);
    if (count > 2) hostile_state ^= strtoull(arguments[2], NULL, 10) << 20;
    return tests_run();
}
