/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fault_device.c - fails, corrupts, tears, delays and refuses operations of the device it wraps.
 *
 * An operation takes a slot with an inner operation of its own. Its rule is decided once, at
 * submit; then the operation is in one of these places:
 *
 *     submit -> inner device -> landed (until due_ns) -> handed on by reap
 *            |-> landed at once, when the rule keeps it from the inner device
 *            \-> hanging until the rules are cleared -> inner device
 *
 * A layer without rules adds a copy of each operation and nothing else, so a test can wrap every
 * device and order faults when it wants them. The device is never used outside tests.
 *
 * Thread rule: as fault_device.h; `lock` guards the rules and counts, never an I/O.
 */
#include "fault_device.h"
#include "base/clock.h"
#include "tiers/devices/device_internal.h"
#include "tiers/devices/device_layer.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

typedef struct fault_rule {
    tiers_fault_rule rule;
    uint64_t seen; /* matching operations so far */
} fault_rule;

/* The place of an operation, as in the picture above. */
typedef enum fault_state {
    FAULT_FREE = 0,
    FAULT_INSIDE = 1,
    FAULT_LANDED = 2,
    FAULT_HANGING = 3
} fault_state;

/* A hanging operation is looked after once a millisecond. */
enum { FAULT_HANG_NAP_NS = 1000000 };

/* An operation of the caller (outer), the one inside that stands for it, and the rule that was
 * decided for it. A slot is the submitting thread's alone; only `clears` compares it with what
 * another thread does. */
typedef struct fault_slot {
    kvt_io inner;
    kvt_io *outer;
    tiers_fault_rule rule; /* action 0: none */
    uint64_t due_ns;       /* known when landed */
    uint64_t clears;       /* hanging: the device's when it began to */
    fault_state state;
} fault_slot;

typedef struct fault_device {
    tiers_layer layer;
    pthread_mutex_t lock;
    fault_rule rules[TIERS_FAULT_RULES_MAX];
    uint32_t rule_count;
    uint64_t clears; /* times that the rules were cleared: operations that hung go on */
    bool gone;
    tiers_fault_counts counts;
    uint32_t slot_count;
    fault_slot slots[];
} fault_device;

static const kvt_device_ops fault_ops;

kvt_status tiers_fault_open(kvt_device *inner, kvt_device **device_out)
{
    uint32_t depth = inner->facts.depth_max;
    fault_device *fault = calloc(1, sizeof *fault + depth * sizeof fault->slots[0]);
    if (fault == NULL) return KVT_E_MEMORY;
    if (pthread_mutex_init(&fault->lock, NULL) != 0) {
        free(fault);
        return KVT_E_MEMORY;
    }
    tiers_layer_init(&fault->layer, &fault_ops, inner);
    fault->slot_count = depth;
    *device_out = &fault->layer.base;
    return KVT_OK;
}

/* Operations that hang must have been let go, or the wrapper asserts. */
static void fault_close(kvt_device *device)
{
    fault_device *fault = (fault_device *)device;
    kvt_device_close(fault->layer.inner);
    pthread_mutex_destroy(&fault->lock);
    free(fault);
}

/* The wrapper of a device; asserts that it is one. */
static fault_device *fault_from(kvt_device *device)
{
    assert(device != NULL && device->ops == &fault_ops);
    return (fault_device *)device;
}

/* The asserts refuse combinations that would never fire, which are mistakes of a test. */
kvt_status tiers_fault_add(kvt_device *device, const tiers_fault_rule *rule)
{
    fault_device *fault = fault_from(device);
    assert(rule->action >= TIERS_FAULT_FAIL && rule->action <= TIERS_FAULT_EXIT);
    assert(rule->action == TIERS_FAULT_FAIL || rule->action == TIERS_FAULT_HANG ||
           (rule->kinds & TIERS_FAULT_SYNCS) == 0);
    assert(rule->action != TIERS_FAULT_FLIP || rule->kinds == TIERS_FAULT_READS);
    assert(rule->action != TIERS_FAULT_TEAR || rule->kinds == TIERS_FAULT_WRITES);
    kvt_status status = KVT_E_SPACE;
    pthread_mutex_lock(&fault->lock);
    if (fault->rule_count < TIERS_FAULT_RULES_MAX) {
        fault->rules[fault->rule_count++] = (fault_rule){.rule = *rule};
        status = KVT_OK;
    }
    pthread_mutex_unlock(&fault->lock);
    return status;
}

/* The count of clears is what hanging operations watch; rules that are added later do not hold them
 * again. */
void tiers_fault_clear(kvt_device *device)
{
    fault_device *fault = fault_from(device);
    pthread_mutex_lock(&fault->lock);
    fault->rule_count = 0;
    fault->clears++;
    pthread_mutex_unlock(&fault->lock);
}

void tiers_fault_set_gone(kvt_device *device, bool gone)
{
    fault_device *fault = fault_from(device);
    pthread_mutex_lock(&fault->lock);
    fault->gone = gone;
    pthread_mutex_unlock(&fault->lock);
}

void tiers_fault_counts_get(kvt_device *device, tiers_fault_counts *out)
{
    fault_device *fault = fault_from(device);
    pthread_mutex_lock(&fault->lock);
    *out = fault->counts;
    pthread_mutex_unlock(&fault->lock);
}

/* Whether the device was set gone. Takes the lock. Every step of an operation asks, so a device
 * that goes in the middle of one takes effect at once. */
static bool fault_is_gone(fault_device *fault)
{
    pthread_mutex_lock(&fault->lock);
    bool gone = fault->gone;
    pthread_mutex_unlock(&fault->lock);
    return gone;
}

/* Whether a rule is for this kind of operation and its range; bytes 0 means everywhere. A sync (io
 * is NULL) matches by its kind alone. */
static bool fault_rule_matches(const tiers_fault_rule *rule, uint32_t kind, const kvt_io *io)
{
    if ((rule->kinds & kind) == 0) return false;
    if (rule->bytes == 0 || io == NULL) return true;
    return io->offset < rule->offset + rule->bytes && rule->offset < io->offset + io->bytes;
}

/* The rule that fires for an operation (io is NULL for a sync), action 0 when none does. The lock
 * is held. Counting stops at the first rule that fires, so the rules behind it see fewer
 * operations. */
static tiers_fault_rule fault_decide(fault_device *fault, uint32_t kind, const kvt_io *io)
{
    const tiers_fault_rule none = {0};
    if (fault->gone) {
        fault->counts.hits++;
        return (tiers_fault_rule){
            .action = TIERS_FAULT_FAIL, .status = KVT_E_GONE, .os_error = ENODEV};
    }
    for (uint32_t i = 0; i < fault->rule_count; i++) {
        fault_rule *entry = &fault->rules[i];
        if (!fault_rule_matches(&entry->rule, kind, io)) continue;
        uint64_t number = entry->seen++;
        if (number < entry->rule.skip) continue;
        if (entry->rule.hits != 0 && number - entry->rule.skip >= entry->rule.hits) continue;
        fault->counts.hits++;
        return entry->rule;
    }
    return none;
}

/* True once the rules were cleared, or the device is gone. The count of hung operations falls
 * exactly once for each that hung. */
static bool fault_hang_over(fault_device *fault, uint64_t clears)
{
    pthread_mutex_lock(&fault->lock);
    bool over = fault->clears != clears || fault->gone;
    assert(fault->counts.hung > 0 && "what asks does hang");
    if (over) fault->counts.hung--;
    pthread_mutex_unlock(&fault->lock);
    return over;
}

/* A free slot, or NULL. NULL means that the depth is reached. */
static fault_slot *fault_slot_acquire(fault_device *fault)
{
    for (uint32_t i = 0; i < fault->slot_count; i++) {
        if (fault->slots[i].state == FAULT_FREE) return &fault->slots[i];
    }
    return NULL;
}

/* Notes that the inner operation has ended, and when its delay is over. A delay counts from the
 * inner finish. */
static void fault_slot_land(fault_slot *slot)
{
    assert(slot->state == FAULT_INSIDE);
    slot->state = FAULT_LANDED;
    slot->due_ns = slot->inner.finished_ns;
    if (slot->rule.action == TIERS_FAULT_DELAY) slot->due_ns += slot->rule.delay_ns;
}

/* Ends the caller's operation as the inner device and the rule say. A device that is gone by now
 * overrules the rule. */
static void fault_finish(fault_device *fault, fault_slot *slot)
{
    assert(slot->state == FAULT_LANDED);
    kvt_io *io = slot->outer;
    kvt_status status = slot->inner.status;
    int os_error = slot->inner.os_error;
    if (slot->rule.action == TIERS_FAULT_FAIL || slot->rule.action == TIERS_FAULT_TEAR) {
        status = slot->rule.status;
        os_error = slot->rule.os_error;
    } else if (slot->rule.action == TIERS_FAULT_FLIP && status == KVT_OK) {
        /* The checksum of the record has to notice it. */
        const uint64_t bit = slot->rule.flip_bit % ((uint64_t)io->bytes * 8);
        unsigned char *byte = (unsigned char *)io->buffer + bit / 8;
        *byte = (unsigned char)(*byte ^ (1u << (bit % 8)));
    }
    if (fault_is_gone(fault)) {
        status = KVT_E_GONE;
        os_error = ENODEV;
    }
    tiers_io_finish(io, status, os_error, slot->due_ns);
    slot->state = FAULT_FREE;
}

/* Submits to the inner device the bytes that the rule leaves of the operation: none of a failed
 * one, the head of a torn one. Without bytes the operation ends at once. The torn head is rounded
 * down to the alignment, as a drive writes whole sectors. */
static kvt_status fault_pass(fault_device *fault, fault_slot *slot, const kvt_io *io)
{
    uint32_t bytes = io->bytes;
    if (slot->rule.action == TIERS_FAULT_FAIL) bytes = 0;
    if (slot->rule.action == TIERS_FAULT_TEAR) {
        uint32_t torn = slot->rule.torn_bytes & ~(fault->layer.base.facts.align_bytes - 1u);
        if (torn < bytes) bytes = torn;
    }
    slot->inner = (kvt_io){
        .kind = io->kind, .bytes = bytes, .offset = io->offset, .buffer = io->buffer, .user = slot};
    if (bytes != 0) return kvt_device_submit(fault->layer.inner, &slot->inner);
    slot->inner.submitted_ns = slot->inner.finished_ns = base_clock_ns();
    return KVT_OK;
}

/* The rule is decided before anything else happens, so that a refusal as busy leaves no trace. */
static kvt_status fault_submit(kvt_device *device, kvt_io *io)
{
    fault_device *fault = (fault_device *)device;
    fault_slot *slot = fault_slot_acquire(fault);
    if (slot == NULL) return KVT_BUSY;
    /* Decide a read or write and counts it. A refusal as busy is not counted, because the caller
     * submits the same operation again. */
    bool is_read = io->kind == KVT_IO_READ;
    pthread_mutex_lock(&fault->lock);
    tiers_fault_rule rule =
        fault_decide(fault, is_read ? TIERS_FAULT_READS : TIERS_FAULT_WRITES, io);
    if (rule.action != TIERS_FAULT_BUSY) {
        if (is_read) {
            fault->counts.reads++;
        } else {
            fault->counts.writes++;
        }
    }
    pthread_mutex_unlock(&fault->lock);
    slot->rule = rule;
    if (slot->rule.action == TIERS_FAULT_BUSY) return KVT_BUSY;
    if (slot->rule.action == TIERS_FAULT_EXIT) pthread_exit(NULL);
    if (slot->rule.action == TIERS_FAULT_HANG) {
        tiers_io_begin(io, base_clock_ns());
        slot->outer = io;
        /* Let an operation hang until the rules are cleared the next time. The slot keeps the
         * number of clears, so that one clear frees it and an earlier one does not. */
        assert(slot->state == FAULT_FREE);
        pthread_mutex_lock(&fault->lock);
        slot->clears = fault->clears;
        slot->state = FAULT_HANGING;
        fault->counts.hung++;
        pthread_mutex_unlock(&fault->lock);
        return KVT_QUEUED;
    }
    kvt_status status = fault_pass(fault, slot, io);
    if (status == KVT_BUSY) return KVT_BUSY;
    tiers_io_begin(io, slot->inner.submitted_ns);
    slot->outer = io;
    slot->state = FAULT_INSIDE;
    if (status == KVT_QUEUED) return KVT_QUEUED;
    fault_slot_land(slot);
    if (slot->rule.action == TIERS_FAULT_DELAY) return KVT_QUEUED;
    fault_finish(fault, slot);
    return KVT_OK;
}

/* Takes completions from the inner device, waiting for the first up to timeout_ns. At most 32 a
 * call; the loop of fault_reap comes back for the rest. */
static void fault_land(fault_device *fault, uint64_t timeout_ns)
{
    kvt_io *done[32];
    size_t min = timeout_ns != 0 ? 1 : 0;
    size_t count = kvt_device_reap(fault->layer.inner, done, min, 32, timeout_ns);
    for (size_t i = 0; i < count; i++)
        fault_slot_land(done[i]->user);
}

/* Hands on the landed operations whose delay is over. The order is that of the slots, not of the
 * finishes: callers must not rely on either. */
static size_t fault_release(fault_device *fault, kvt_io **done, size_t max, uint64_t now)
{
    size_t count = 0;
    for (uint32_t i = 0; i < fault->slot_count && count < max; i++) {
        fault_slot *slot = &fault->slots[i];
        if (slot->state != FAULT_LANDED) continue;
        if (slot->rule.action == TIERS_FAULT_DELAY && slot->due_ns > now) continue;
        fault_finish(fault, slot);
        done[count++] = slot->outer;
    }
    return count;
}

/* Waits for an inner completion or the end of a delay, whichever comes first. Hanging operations
 * are looked after once a nap, because a clear comes from another thread without a signal. */
static void fault_wait(fault_device *fault, uint64_t now, uint64_t deadline)
{
    uint64_t wake = deadline;
    for (uint32_t i = 0; i < fault->slot_count; i++) {
        fault_slot *slot = &fault->slots[i];
        if (slot->state == FAULT_LANDED && slot->due_ns < wake) wake = slot->due_ns;
        if (slot->state == FAULT_HANGING && now + FAULT_HANG_NAP_NS < wake)
            wake = now + FAULT_HANG_NAP_NS;
    }
    if (wake <= now) return;
    if (fault->layer.inner->in_flight != 0) {
        fault_land(fault, wake - now);
    } else {
        base_sleep_until(wake);
    }
}

/* Resumes, lands and hands on, until `min` operations were handed on or the time is over. */
static size_t fault_reap(kvt_device *device, kvt_io **done, size_t min, size_t max,
                         uint64_t timeout_ns)
{
    fault_device *fault = (fault_device *)device;
    uint64_t deadline = tiers_device_deadline(base_clock_ns(), timeout_ns);
    size_t count = 0;
    for (;;) {
        /* Pass on the operations whose hang is over. A resumed operation has no rule any more: it
         * is done as if it had just come. */
        for (uint32_t i = 0; i < fault->slot_count; i++) {
            fault_slot *slot = &fault->slots[i];
            if (slot->state != FAULT_HANGING || !fault_hang_over(fault, slot->clears)) continue;
            slot->rule = (tiers_fault_rule){0};
            if (fault_is_gone(fault)) slot->rule.action = TIERS_FAULT_FAIL;
            slot->state = FAULT_INSIDE;
            if (fault_pass(fault, slot, slot->outer) == KVT_OK) fault_slot_land(slot);
        }
        fault_land(fault, 0);
        uint64_t now = base_clock_ns();
        count += fault_release(fault, done + count, max - count, now);
        if (count >= min || now >= deadline) return count;
        fault_wait(fault, now, deadline);
    }
}

/* A sync that hangs blocks its caller, as a real one would. The lock is not held while it hangs. */
static kvt_status fault_sync(kvt_device *device)
{
    fault_device *fault = (fault_device *)device;
    pthread_mutex_lock(&fault->lock);
    tiers_fault_rule rule = fault_decide(fault, TIERS_FAULT_SYNCS, NULL);
    fault->counts.syncs++;
    uint64_t clears = fault->clears;
    bool hangs = rule.action == TIERS_FAULT_HANG;
    if (hangs) fault->counts.hung++;
    pthread_mutex_unlock(&fault->lock);
    while (hangs && !fault_hang_over(fault, clears))
        base_sleep_until(base_clock_ns() + FAULT_HANG_NAP_NS);
    if (rule.action == TIERS_FAULT_FAIL) return rule.status;
    return kvt_device_sync(fault->layer.inner);
}

/* Rules do not concern trims: they are advice, and may fail by themselves. */
static kvt_status fault_trim(kvt_device *device, uint64_t offset, uint64_t bytes)
{
    if (fault_is_gone((fault_device *)device)) return KVT_E_GONE;
    return tiers_layer_trim(device, offset, bytes);
}

static const kvt_device_ops fault_ops = {
    .struct_size = sizeof(kvt_device_ops),
    .abi_version = KVT_DEVICE_ABI,
    .name = "fault",
    .close = fault_close,
    .submit = fault_submit,
    .flush = tiers_layer_flush,
    .reap = fault_reap,
    .sync = fault_sync,
    .attach = tiers_layer_attach,
    .detach = tiers_layer_detach,
    .register_buffers = tiers_layer_register_buffers,
    .trim = fault_trim,
    .address = tiers_layer_address,
};
