/* SPDX-License-Identifier: Apache-2.0 */
/*
 * torture_codecs_scribbled.c - a client of `kvterrace serve` changes its memory while it is put and
 * got: a thread scribbles over what every codec of the table decodes into, and over what is
 * copied into a raw record. Nothing beside a buffer is written, no decoder ends with another
 * status than it does alone, and what is decoded afterwards, without the thread, is right.
 * AddressSanitizer sees reads beside a buffer.
 *
 *   torture_codecs_scribbled [ROUNDS]    of each variant and shape; 6
 */
#include "basis_support.h"
#include "codecs_support.h"

#include "codecs/codec_table.h"
#include "codecs/kernels/cpu.h"

#include <pthread.h>
#include <stdatomic.h>

/* One or more of each codec of the table. */
static const char *const variants[] = {
    "raw",
    "lossless",
    "lossless:fast",
    "kivi:k2v8,g32,r32",
    "kivi:k4v4,g64",
    "planes:k8v8,g64",
    "planes:k4v3,g32,vchan",
    "planes:k2v8,g128,vhead,vfirst",
    "entropy:k0.25v0.5",
    "entropy:k0.75v0.1,vchan,middle",
    "transform:00000,s0.25",
    "drop:keydiff,50+planes:k4v2",
    "drop:knorm,75+entropy:k0.5v0.5",
};
enum { VARIANTS = sizeof variants / sizeof variants[0] };

/* The last one is written past the caches. */
static const kvt_layout layouts[] = {
    {.layers = 2, .kv_heads = 2, .head_dim = 80, .dtype = KVT_DTYPE_BF16, .tokens = 65},
    {.layers = 1, .kv_heads = 3, .head_dim = 24, .dtype = KVT_DTYPE_FP16, .tokens = 63},
    {.layers = 1, .kv_heads = 2, .head_dim = 128, .dtype = KVT_DTYPE_BF16, .tokens = 1030},
};

static uint32_t rounds = 6;

/* ---- the other thread ---- */

typedef struct scribbler {
    pthread_t thread;
    uint64_t *words;
    uint64_t count;
    atomic_bool stops;
    atomic_uint passes;
} scribbler;

#if defined(__SANITIZE_THREAD__)
__attribute__((no_sanitize("thread")))
#endif
static void *
scribble(void *argument)
{
    scribbler *self = argument;
    volatile uint64_t *words = self->words;
    uint64_t state = 88172645463325252;
    while (!atomic_load(&self->stops)) {
        const uint64_t kind = state % 4;
        for (uint64_t i = 0; i < self->count; i++) {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            words[i] = kind == 0 ? 0 : kind == 1 ? UINT64_MAX : state;
        }
        atomic_fetch_add(&self->passes, 1);
    }
    return NULL;
}

static void scribbler_begin(scribbler *self, void *memory, uint64_t bytes)
{
    *self = (scribbler){.words = memory, .count = bytes / sizeof(uint64_t)};
    assert_int_equal(pthread_create(&self->thread, NULL, scribble, self), 0);
    while (atomic_load(&self->passes) == 0)
        continue;
}

static void scribbler_end(scribbler *self)
{
    atomic_store(&self->stops, true);
    assert_int_equal(pthread_join(self->thread, NULL), 0);
}

/* ---- a case ---- */

typedef struct scribbled_case {
    kvt_record_spec spec;
    basis_made basis;
    const transform_basis *list[1];
    guarded source, record, scratch, target;
    uint64_t record_bytes, decoded_bytes;
} scribbled_case;

static kvt_status case_encode(scribbled_case *c, guarded *record)
{
    return kvt_record_encode(&c->spec, c->source.data, c->source.bytes, record->data, record->bytes,
                             c->scratch.data, c->scratch.bytes, &c->record_bytes);
}

static kvt_status case_decode(scribbled_case *c)
{
    const kvt_status status =
        kvt_record_decode(c->record.data, c->record_bytes, &c->spec, c->target.data,
                          c->decoded_bytes, c->scratch.data, c->scratch.bytes);
    guarded_check(&c->target, c->target.bytes);
    guarded_check(&c->scratch, c->scratch.bytes);
    return status;
}

/* False when the codec does not take the layout. */
static bool case_open(scribbled_case *c, const kvt_layout *layout, const char *variant)
{
    uint64_t bytes, bound, scratch;
    kvt_record_info info;
    *c = (scribbled_case){.spec = codecs_support_spec(*layout, variant)};
    c->spec.layout.tokens_may_drop = c->spec.variant.mode >> 8 != 0;
    const kvt_codec *codec = kvt_codec_find(c->spec.variant.codec);
    assert_non_null(codec);
    if ((codec->flags & KVT_CODEC_FLAG_SPANS) != 0) {
        const transform_shape shape = {.layers = layout->layers,
                                       .kv_heads = layout->kv_heads,
                                       .head_dim = layout->head_dim,
                                       .rotary_dim = layout->head_dim & ~1u,
                                       .sides = 2,
                                       .pairing = layout->order,
                                       .span = TRANSFORM_SPAN_HEAD};
        c->basis = basis_made_of(shape, 5);
        c->list[0] = &c->basis.basis;
        c->spec.bases = (kvt_record_bases){c->list, 1};
    }
    assert_status(kvt_layout_bytes(layout, &bytes), KVT_OK);
    if (kvt_record_bound(&c->spec, &bound, &scratch) != KVT_OK) return false;
    c->source = guarded_make(bytes);
    c->record = guarded_make(bound);
    c->scratch = guarded_make(scratch);
    c->target = guarded_make(bytes);
    codecs_kv_sample_fill(layout, 5, c->source.data);
    const kvt_status status = case_encode(c, &c->record);
    assert_true(status == KVT_OK || status == KVT_RAW);
    assert_status(kvt_record_verify(c->record.data, c->record_bytes, &info), KVT_OK);
    c->decoded_bytes = info.decoded_bytes;
    return true;
}

/* Decodes on every level while the target changes. Returns whether the codec took the layout. */
static bool run_decode(const kvt_layout *layout, const char *variant)
{
    scribbled_case c;
    scribbler other;
    if (!case_open(&c, layout, variant)) return false;
    assert_status(case_decode(&c), KVT_OK);
    uint8_t *wanted = test_alloc(c.decoded_bytes);
    memcpy(wanted, c.target.data, c.decoded_bytes);
    for (int level = CODECS_CPU_SCALAR; level <= (int)codecs_cpu_best(); level++) {
        codecs_cpu_force((codecs_cpu)level);
        scribbler_begin(&other, c.target.data, c.decoded_bytes);
        for (uint32_t i = 0; i < rounds; i++)
            assert_status(case_decode(&c), KVT_OK);
        scribbler_end(&other);
        assert_status(case_decode(&c), KVT_OK);
        assert_memory_equal(c.target.data, wanted, c.decoded_bytes);
    }
    return true;
}

TEST(targets_that_change)
{
    bool seen[VARIANTS] = {false};
    for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++)
        for (size_t v = 0; v < VARIANTS; v++) {
            const size_t ends = test_ends();
            seen[v] |= run_decode(&layouts[i], variants[v]);
            test_end(ends);
        }
    for (size_t v = 0; v < VARIANTS; v++)
        assert_true(seen[v]);
    /* No codec of the table is left out. */
    for (size_t i = 0; kvt_codec_at(i) != NULL; i++) {
        bool named = false;
        for (size_t v = 0; v < VARIANTS; v++) {
            kvt_variant variant;
            assert_status(kvt_variant_parse(variants[v], &variant), KVT_OK);
            named |= variant.codec == kvt_codec_at(i)->id ||
                     (kvt_codec_at(i)->id == KVT_CODEC_DROP && variant.mode >> 8 != 0);
        }
        if (!named) fail_msg("codec %u is not tried", kvt_codec_at(i)->id);
    }
}

/* What a put makes of a client's memory is a raw record, on a copy of which all else is made. */
TEST(sources_that_change)
{
    for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++) {
        scribbled_case c;
        scribbler other;
        const size_t ends = test_ends();
        assert_true(case_open(&c, &layouts[i], "raw"));
        guarded record = guarded_make(c.record.bytes);
        scribbler_begin(&other, c.source.data, c.source.bytes);
        for (uint32_t round = 0; round < 4 * rounds; round++) {
            const kvt_status status = case_encode(&c, &record);
            assert_true(status == KVT_OK || status == KVT_RAW);
            assert_true(c.record_bytes <= record.bytes);
            guarded_check(&record, record.bytes);
            /* Whatever was copied is one entry, or is refused. */
            const kvt_status read =
                kvt_record_decode(record.data, c.record_bytes, &c.spec, c.target.data,
                                  c.decoded_bytes, c.scratch.data, c.scratch.bytes);
            assert_true(read == KVT_OK || read == KVT_E_CORRUPT);
            guarded_check(&c.target, c.target.bytes);
        }
        scribbler_end(&other);
        test_end(ends);
    }
}

int main(int count, char **arguments)
{
    if (count > 1) rounds = (uint32_t)strtoul(arguments[1], NULL, 10);
    return tests_run();
}
