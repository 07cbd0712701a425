/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernel_words.h - what the kernels of a GPU (the .cu files of this folder) share: the words that
 * they are written in, reading and writing of whole words, and where a row of a target lies.
 *
 * The sources are C as well as CUDA. nvcc makes PTX of them. The tests compile them as C, where
 * tests/support/kernel_lanes.h has the words, and a lane is a fiber that others wait for at a
 * meeting. So: no C++, no pointer to a type that the bytes were not written as but by the loads and
 * stores below, and nothing but these words where lanes have to do with each other.
 *
 * A meeting is one of kernel_meet (all threads of the block), kernel_meet_warp, kernel_ballot and
 * kernel_shuffle (all lanes of the warp). Every thread that takes part comes to every meeting, in
 * the same order.
 */
#ifndef CODECS_KERNEL_WORDS_H
#define CODECS_KERNEL_WORDS_H

#include "jobs.h"

#ifdef __CUDACC__

#define KERNEL_ENTRY(blocks) extern "C" __global__ void __launch_bounds__(KERNEL_THREADS, (blocks))
#define KERNEL_INLINE        static __device__ __forceinline__
#define KERNEL_SHARED        __shared__
#define KERNEL_FOURS         __align__(16) /* of shared floats for kernel_take_four */
#define KERNEL_TABLE         static __device__ __constant__ const
#define KERNEL_UNROLL        _Pragma("unroll")

#define kernel_block()  ((uint32_t)blockIdx.x)
#define kernel_thread() ((uint32_t)threadIdx.x)

/* All threads of the block; what they wrote to shared memory before, all see after. */
#define kernel_meet() __syncthreads()

/* All lanes of the warp, in the same way. */
#define kernel_meet_warp() __syncwarp()

/* Bit i: what lane i says. */
#define kernel_ballot(flag) __ballot_sync(0xffffffffu, (flag))

/* The word of another lane. */
#define kernel_shuffle(word, lane) __shfl_sync(0xffffffffu, (word), (int)(lane))

#define kernel_count_bits(word) ((uint32_t)__popc(word))
#define kernel_lowest_bit(word) ((uint32_t)__ffs((int)(word)) - 1)

/* Product, sum and quotient of fp32, each rounded by itself. */
#define kernel_multiply(a, b) __fmul_rn((a), (b))
#define kernel_add(a, b)      __fadd_rn((a), (b))
#define kernel_divide(a, b)   __fdiv_rn((a), (b))
#define kernel_larger(a, b)   fmaxf((a), (b))
#define kernel_smaller(a, b)  fminf((a), (b))

/* The same of fp64; and of fp32 a product that is exact with a sum. */
#define kernel_multiply_double(a, b) __dmul_rn((a), (b))
#define kernel_add_double(a, b)      __dadd_rn((a), (b))
#define kernel_multiply_add(a, b, c) __fmaf_rn((a), (b), (c))

#define kernel_float_bits(value) __float_as_uint(value)
#define kernel_bits_float(bits)  __uint_as_float(bits)

/* Four of the eight bytes of two words, by the four numbers in the selector's lowest nibbles. */
#define kernel_pick_bytes(low, high, selector) __byte_perm((low), (high), (selector))

/* The upper half of a product of 64 bits. */
#define kernel_multiply_high(a, b) __umul64hi((a), (b))

KERNEL_INLINE float kernel_from_half(uint32_t half)
{
    float value;
    asm("{ .reg .b16 h; cvt.u16.u32 h, %1; cvt.f32.f16 %0, h; }" : "=f"(value) : "r"(half));
    return value;
}

/* To fp16 and bf16, to the nearest, ties to even. No NaN comes here. */
KERNEL_INLINE uint32_t kernel_to_half(float value)
{
    uint32_t half;
    asm("{ .reg .b16 h; cvt.rn.f16.f32 h, %1; cvt.u32.u16 %0, h; }" : "=r"(half) : "f"(value));
    return half;
}

/* Two of bf16 in a word, the first one in the low half. */
KERNEL_INLINE uint32_t kernel_to_bf16s(float first, float second)
{
    uint32_t both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(second), "f"(first));
    return both;
}

/* Four floats of shared memory, at a multiple of 16. */
KERNEL_INLINE void kernel_take_four(const float *from, float four[4])
{
    const float4 taken = *(const float4 *)from;
    four[0] = taken.x;
    four[1] = taken.y;
    four[2] = taken.z;
    four[3] = taken.w;
}

/* A word at an address that is a multiple of its bytes. A kernel reads nothing that it or another
 * kernel of the launch writes but by kernel_reload2, behind a meeting. volatile: what is read again
 * is read again, and takes no register meanwhile; ptxas moves the loads ahead all the same. */
#define KERNEL_LOAD(name, type, letter, constraint)                                                \
    KERNEL_INLINE type name(uint64_t address)                                                      \
    {                                                                                              \
        type word;                                                                                 \
        asm volatile("ld.global.nc." letter " %0, [%1];" : "=" constraint(word) : "l"(address));   \
        return word;                                                                               \
    }

#define KERNEL_STORE(name, type, letter, constraint)                                               \
    KERNEL_INLINE void name(uint64_t address, type word)                                           \
    {                                                                                              \
        asm volatile("st.global." letter " [%0], %1;" ::"l"(address), constraint(word));           \
    }

KERNEL_LOAD(kernel_load1, uint32_t, "u8", "r")
KERNEL_LOAD(kernel_load2, uint16_t, "u16", "h")
KERNEL_LOAD(kernel_load4, uint32_t, "u32", "r")
KERNEL_LOAD(kernel_load8, uint64_t, "u64", "l")
KERNEL_INLINE uint16_t kernel_reload2(uint64_t address)
{
    uint16_t word;
    asm volatile("ld.global.u16 %0, [%1];" : "=h"(word) : "l"(address) : "memory");
    return word;
}

KERNEL_STORE(kernel_store1, uint32_t, "u8", "r")
KERNEL_STORE(kernel_store2, uint16_t, "u16", "h")
KERNEL_STORE(kernel_store4, uint32_t, "u32", "r")
KERNEL_STORE(kernel_store8, uint64_t, "u64", "l")

KERNEL_INLINE void kernel_load16(uint64_t address, uint32_t words[4])
{
    asm volatile("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "l"(address));
}

KERNEL_INLINE void kernel_store16(uint64_t address, const uint32_t words[4])
{
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(address), "r"(words[0]),
                 "r"(words[1]), "r"(words[2]), "r"(words[3]));
}

/* A byte that this thread may have written. */
KERNEL_INLINE uint32_t kernel_reload1(uint64_t address)
{
    uint32_t word;
    asm volatile("ld.global.u8 %0, [%1];" : "=r"(word) : "l"(address));
    return word;
}

/* Adds 1 to a word that other threads may add to. */
KERNEL_INLINE void kernel_count_one(uint64_t address)
{
    asm volatile("red.global.add.u32 [%0], 1;" ::"l"(address));
}

/* A word that the host or another block writes meanwhile; with what it wrote before. */
KERNEL_INLINE uint64_t kernel_peek8(uint64_t address)
{
    uint64_t word;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(word) : "l"(address) : "memory");
    return word;
}

KERNEL_INLINE uint32_t kernel_peek1(uint64_t address)
{
    uint32_t word;
    asm volatile("ld.relaxed.sys.global.u8 %0, [%1];" : "=r"(word) : "l"(address) : "memory");
    return word;
}

/* Hands over, by a word, what the warp wrote in front of a fence of each lane and a meeting. */
KERNEL_INLINE void kernel_hand8(uint64_t address, uint64_t word)
{
    asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(address), "l"(word) : "memory");
}

KERNEL_INLINE void kernel_fence(void)
{
    asm volatile("fence.acq_rel.sys;" ::: "memory");
}

/* Writes a word of the GPU's memory if it is what it was. Returns what it was. */
KERNEL_INLINE uint64_t kernel_swap8(uint64_t address, uint64_t was, uint64_t word)
{
    uint64_t before;
    asm volatile("atom.global.cas.b64 %0, [%1], %2, %3;"
                 : "=l"(before)
                 : "l"(address), "l"(was), "l"(word)
                 : "memory");
    return before;
}

/* Nanoseconds since some instant. */
KERNEL_INLINE uint64_t kernel_now_ns(void)
{
    uint64_t now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
}

/* Lets others go on for a while. */
KERNEL_INLINE void kernel_pause(void)
{
    asm volatile("nanosleep.u32 200;");
}

/* Asks for the line of an address, which is read soon. */
KERNEL_INLINE void kernel_ahead(uint64_t address)
{
    asm volatile("prefetch.global.L2 [%0];" ::"l"(address));
}

/* A job, field by field into registers. */
#define KERNEL_TAKE(job, address)                                                                  \
    KERNEL_UNROLL                                                                                  \
    for (uint32_t take = 0; take < sizeof *(job) / 8; take++)                                      \
    ((uint64_t *)(job))[take] = kernel_load8((address) + 8 * take)

#elif !defined(KERNEL_ENTRY)
#error "the words of kernels: by nvcc, or by tests/support/kernel_lanes.h"
#endif

#define kernel_lane() (kernel_thread() % KERNEL_WARP)
#define kernel_warp() (kernel_thread() / KERNEL_WARP)

/* The job of this block: the last one whose first block is not behind it. Every job of an array
 * begins with its kernel_head. */
KERNEL_INLINE uint64_t kernel_job(uint64_t jobs, uint32_t job_bytes, uint32_t job_count)
{
    uint32_t first = 0, end = job_count;
    while (end - first > 1) {
        const uint32_t middle = first + (end - first) / 2;
        if (kernel_load4(jobs + (uint64_t)middle * job_bytes) <= kernel_block())
            first = middle;
        else
            end = middle;
    }
    return jobs + (uint64_t)first * job_bytes;
}

/* A word of 64 bits of another lane. */
KERNEL_INLINE uint64_t kernel_shuffle8(uint64_t word, uint32_t lane)
{
    const uint32_t low = kernel_shuffle((uint32_t)word, lane);
    const uint32_t high = kernel_shuffle((uint32_t)(word >> 32), lane);
    return (uint64_t)high << 32 | low;
}

KERNEL_INLINE void kernel_say(uint64_t verdicts, const kernel_head *head, uint32_t verdict)
{
    kernel_store4(verdicts + (uint64_t)head->verdict * sizeof(uint32_t), verdict);
}

/* A row of a target, and the place of it in its block. */
typedef struct kernel_row {
    uint64_t address;
    uint32_t block; /* index in the table */
    uint32_t slot;
} kernel_row;

/* Slot 0 of a block. at: address of the target itself, whose fields are read there: they are needed
 * once a block, and registers are dear. */
KERNEL_INLINE uint64_t kernel_block_address(uint64_t at, uint32_t block)
{
    const uint64_t start = kernel_load8(at + offsetof(kernel_target, start));
    const uint64_t blocks = kernel_load8(at + offsetof(kernel_target, blocks));
    const uint64_t stride = kernel_load8(at + offsetof(kernel_target, block_stride));
    return start + stride * (blocks != 0 ? kernel_load4(blocks + (uint64_t)block * 4) : block);
}

/* The row of a token. first_slot + tokens is below 2^32. */
KERNEL_INLINE kernel_row kernel_row_of(const kernel_target *target, uint64_t at, uint32_t token)
{
    kernel_row row = {0, 0, (uint32_t)target->first_slot + token};
    if (target->block_tokens != UINT32_MAX) {
        row.block = row.slot / target->block_tokens;
        row.slot -= row.block * target->block_tokens;
        row.address = kernel_block_address(at, row.block);
    } else {
        row.address = target->start;
    }
    row.address += row.slot * target->token_stride;
    return row;
}

/* On to the next token, which there is. */
KERNEL_INLINE void kernel_row_next(const kernel_target *target, uint64_t at, kernel_row *row)
{
    row->slot++;
    row->address += target->token_stride;
    if (row->slot != target->block_tokens) return;
    row->slot = 0;
    row->block++;
    row->address = kernel_block_address(at, row->block);
}

/* bf16, in the upper half of a word, to E4M3, as half.h does it. */
KERNEL_INLINE uint32_t kernel_bf16_to_fp8(uint32_t bits)
{
    const uint32_t size = bits & 0x7fffffffu, sign = bits >> 24 & 0x80;
    const uint32_t kept = size < 0x43e00000u ? size : 0x43e00000u;
    /* Below 2^-6: adding 2^14 rounds to the step of 2^-9. */
    if (kept < 0x3c800000u)
        return sign |
               (kernel_float_bits(kernel_add(kernel_bits_float(kept), 16384.0f)) - 0x46800000u);
    return sign | (kept - 0x3c000000u + 0x7ffffu + (kept >> 20 & 1)) >> 20;
}

/* Stores an element. */
KERNEL_INLINE void kernel_store_one(uint64_t place, uint32_t element_bytes, uint32_t value)
{
    if (element_bytes == 4)
        kernel_store4(place, value);
    else if (element_bytes == 2)
        kernel_store2(place, (uint16_t)value);
    else
        kernel_store1(place, value);
}

/* Stores `count` words of elements: as one or two stores where the place allows it, else element by
 * element. count and element_bytes are constants at each call. */
KERNEL_INLINE void kernel_store_words(uint64_t address, const uint32_t *words, uint32_t count,
                                      uint32_t element_bytes, uint32_t transfer_bytes)
{
    if (transfer_bytes == 16 && count % 4 == 0) {
        KERNEL_UNROLL
        for (uint32_t i = 0; i < count; i += 4)
            kernel_store16(address + 4 * i, words + i);
    } else if (transfer_bytes >= 8 && count == 2) {
        kernel_store8(address, (uint64_t)words[1] << 32 | words[0]);
    } else {
        KERNEL_UNROLL
        for (uint32_t i = 0; i < 4 * count; i += element_bytes) {
            const uint32_t element = words[i / 4] >> 8 * (i % 4);
            if (element_bytes == 4) kernel_store4(address + i, element);
            if (element_bytes == 2) kernel_store2(address + i, (uint16_t)element);
            if (element_bytes == 1) kernel_store1(address + i, element);
        }
    }
}

#endif
