/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_store_bringup.c - a device that stops answering while it joins: each step ends with
 * KVT_E_GONE, and the device is closed when it answers again.
 *
 * The device is memory behind a gate: an operation takes a token before it moves its bytes. The
 * gate outlives the device.
 */
#include "store_support.h"

#include "base/clock.h"
#include "store/core/bringup.h"
#include "store/learn/costs.h"

#include <semaphore.h>

enum { GATE_BYTES = 4 << 20, GATE_LIMIT_NS = 30000000, GATE_MANY = 1 << 17 };

typedef struct gate {
    kvt_device base;
    sem_t tokens;
    sem_t closed;
    char *bytes;
    uint64_t clock_ns;
} gate;

static kvt_status gate_submit(kvt_device *device, kvt_io *io)
{
    gate *self = (gate *)device;
    while (sem_wait(&self->tokens) != 0)
        continue;
    if (io->kind == KVT_IO_READ)
        memcpy(io->buffer, self->bytes + io->offset, io->bytes);
    else
        memcpy(self->bytes + io->offset, io->buffer, io->bytes);
    io->status = KVT_OK;
    io->submitted_ns = self->clock_ns;
    io->finished_ns = self->clock_ns += 1000;
    return KVT_OK;
}

static void gate_close(kvt_device *device)
{
    sem_post(&((gate *)device)->closed);
}

static const kvt_device_ops gate_ops = {.struct_size = sizeof gate_ops,
                                        .abi_version = KVT_DEVICE_ABI,
                                        .name = "gate",
                                        .close = gate_close,
                                        .submit = gate_submit};

static void gate_set_up(gate *self, unsigned tokens)
{
    *self = (gate){.base = {.ops = &gate_ops,
                            .facts = {.capacity_bytes = GATE_BYTES,
                                      .align_bytes = 4096,
                                      .request_bytes_max = 65536,
                                      .depth_max = 1,
                                      .flags = KVT_DEVICE_DURABLE},
                            .name = "gate"},
                   .bytes = calloc(1, GATE_BYTES),
                   .clock_ns = 1};
    assert_non_null(self->bytes);
    assert_int_equal(sem_init(&self->tokens, 0, tokens), 0);
    assert_int_equal(sem_init(&self->closed, 0, 0), 0);
}

static void gate_tear_down(gate *self)
{
    sem_destroy(&self->closed);
    sem_destroy(&self->tokens);
    free(self->bytes);
}

typedef enum gate_step { STEP_READ, STEP_WRITE, STEP_MEASURE, STEP_COUNT } gate_step;

static kvt_status gate_do(gate_step step, kvt_device **device, uint64_t limit_ns)
{
    tiers_superblock label = {.epoch = 7, .capacity_bytes = GATE_BYTES};
    tiers_label_state found;
    cost_device cost;
    if (step == STEP_READ) return bringup_read_label(device, limit_ns, &label, &found);
    if (step == STEP_WRITE) return bringup_write_label(device, limit_ns, &label);
    return bringup_measure(device, limit_ns, true, 8192, &cost);
}

/* One operation is answered, the next one not until the device has been left alone. */
TEST(a_unresponsive_device_is_left)
{
    for (gate_step step = STEP_READ; step < STEP_COUNT; step++) {
        gate one;
        gate_set_up(&one, 1);
        kvt_device *device = &one.base;
        assert_int_equal(gate_do(step, &device, GATE_LIMIT_NS), KVT_E_GONE);
        assert_null(device);
        assert_int_equal(sem_trywait(&one.closed), -1);
        for (int i = 0; i < GATE_MANY; i++)
            assert_int_equal(sem_post(&one.tokens), 0);
        while (sem_wait(&one.closed) != 0)
            continue;
        gate_tear_down(&one);
    }
}

/* A gate whose bytes are host memory. */
static void *gate_memory(kvt_device *device)
{
    return ((gate *)device)->bytes;
}

static void *gate_opens_late(void *argument)
{
    base_sleep(10 * GATE_LIMIT_NS);
    for (int i = 0; i < GATE_MANY; i++)
        assert_int_equal(sem_post(&((gate *)argument)->tokens), 0);
    return NULL;
}

/* Memory answers when a thread of this process has a processor, so it is waited for. */
TEST(a_memory_that_is_late_is_kept)
{
    kvt_device_ops ops = gate_ops;
    ops.memory = gate_memory;
    gate one;
    pthread_t thread;
    gate_set_up(&one, 1);
    one.base.ops = &ops;
    kvt_device *device = &one.base;
    assert_int_equal(pthread_create(&thread, NULL, gate_opens_late, &one), 0);
    assert_ok(gate_do(STEP_MEASURE, &device, GATE_LIMIT_NS));
    assert_ptr_equal(device, &one.base);
    pthread_join(thread, NULL);
    gate_tear_down(&one);
}

TEST(a_device_that_answers_is_kept)
{
    gate one;
    gate_set_up(&one, GATE_MANY);
    kvt_device *device = &one.base;
    tiers_superblock label;
    tiers_label_state found;
    cost_device cost;
    assert_ok(bringup_read_label(&device, 0, &label, &found));
    assert_int_equal(found, TIERS_LABEL_BLANK);
    assert_ok(gate_do(STEP_WRITE, &device, 0));
    assert_ok(bringup_read_label(&device, UINT64_MAX, &label, &found));
    assert_int_equal(found, TIERS_LABEL_SOUND);
    assert_int_equal(label.epoch, 7);
    assert_ok(bringup_measure(&device, 0, false, 8192, &cost));
    assert_true(cost.probed && cost.read.bytes_per_s > 0);
    assert_ptr_equal(device, &one.base);
    kvt_device_close(device);
    assert_int_equal(sem_trywait(&one.closed), 0);
    gate_tear_down(&one);
}
