/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ptx_groups.cu - kernels whose PTX, ptx_groups.ptx, test_codecs_ptx_machine.c runs and compares
 * with the same in C. Each is a group of instructions as nvcc writes them. Made by
 *
 *     nvcc -arch=compute_80 -fmad=false -ptx ptx_groups.cu
 *     sed -i "s/^.version 9.0/.version 7.0/" ptx_groups.ptx
 */
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

typedef unsigned int u32;
typedef unsigned long long u64;

/* Lanes: votes, shuffles and reductions, in lanes that went apart and met again. */
extern "C" __global__ void lanes(const u32 *in, u32 *out)
{
    const u32 lane = threadIdx.x & 31, all = 0xffffffffu;
    u32 *to = out + (blockIdx.x * blockDim.x + threadIdx.x) * 12;
    u32 value = in[blockIdx.x * blockDim.x + threadIdx.x];
    to[0] = __ballot_sync(all, value & 1);
    to[1] = __shfl_sync(all, value, lane * 7);
    to[2] = __shfl_up_sync(all, value, 3, 16);
    to[3] = __shfl_down_sync(all, value, 5, 8);
    to[4] = __shfl_xor_sync(all, value, 9);
    to[5] = __any_sync(all, value > 250) * 2 + __all_sync(all, value < 200);
    to[6] = __match_any_sync(all, value & 3);
    int same;
    to[7] = __match_all_sync(all, value >> 8, &same) + same;
    to[8] = __reduce_add_sync(all, value) ^ __reduce_min_sync(all, value) ^
            __reduce_xor_sync(all, value);
    u32 mine = 0;
    if (lane % 3 == 0) { /* each lane as long as its value asks; then the third of them votes */
        for (u32 i = 0; i < (value & 15); i++)
            mine += i * value;
        mine += __ballot_sync(0x49249249, mine & 1);
    } else {
        mine = __shfl_xor_sync(all & ~0x49249249u, value, 0);
    }
    to[9] = mine;
    to[10] = __shfl_sync(all, mine, 31 - lane);
    u64 wide = (u64)value << 32 | lane;
    to[11] = (u32)(__shfl_xor_sync(all, wide, 1) >> 16);
}

/* Blocks: barriers, shared and dynamic memory, atomic operations. */
extern "C" __global__ void blocks(const u32 *in, u32 *out, u32 *bins)
{
    __shared__ u32 sums[256];
    __shared__ u32 counts[16];
    extern __shared__ u32 dynamic[];
    const u32 t = threadIdx.x;
    const u32 value = in[blockIdx.x * 256 + t];
    if (t < 16) counts[t] = 0;
    sums[t] = value;
    __syncthreads();
    atomicAdd(&counts[value & 15], 1);
    for (u32 half = 128; half > 0; half /= 2) {
        if (t < half) sums[t] += sums[t + half];
        __syncthreads();
    }
    dynamic[255 - t] = value + sums[0];
    const int many = __syncthreads_count(value & 1);
    const int some = __syncthreads_or(value == 77), each = __syncthreads_and(value < 256);
    u32 *to = out + (blockIdx.x * 256 + t) * 3;
    to[0] = dynamic[t];
    to[1] = (u32)(many * 4 + (some != 0) * 2 + (each != 0));
    to[2] = counts[t & 15];
    atomicMax(&bins[0], value);
    atomicMin(&bins[1], value);
    atomicOr(&bins[2], 1u << (value & 31));
    atomicAnd(&bins[3], ~(1u << (value & 31)));
    atomicXor(&bins[4], value);
    atomicInc(&bins[5], 1000);
    atomicAdd((u64 *)&bins[6], (u64)value << 20);
    if (atomicCAS(&bins[8], 0, blockIdx.x + 1) == 0) atomicExch(&bins[9], blockIdx.x);
    atomicAdd((float *)&bins[10], 0.5f);
}

struct job {
    u64 from, to;
    u32 count;
    float scale;
};
__device__ u32 table[5] = {3, 1, 4, 1, 5};
__constant__ float factors[3] = {1.5f, -2.0f, 0.25f};

__device__ __noinline__ float scaled(float value, int by)
{
    return value * factors[by];
}

__device__ __noinline__ float twice(float value, const u32 *where)
{
    return scaled(value, (int)(*where % 3)) + scaled(value, 0);
}

/* Spaces: structures as parameters, vectors, local arrays, tables, addresses of any, calls. */
extern "C" __global__ void spaces(job what, const float4 *in, float4 *out, short *small)
{
    __shared__ u32 near[32];
    const u32 t = threadIdx.x;
    u32 local[8];
    near[t] = t * 5;
    __syncwarp();
    for (u32 i = 0; i < 8; i++)
        local[i] = t * i + what.count;
    const u32 *where = t % 3 == 0 ? &near[31 - t] : t % 3 == 1 ? &table[t % 5] : &local[t & 7];
    float4 value = __ldg(in + t);
    value.x = twice(value.x, where);
    value.y = what.scale * value.y;
    value.z = (float)(*(const u64 *)what.from + *where);
    switch (what.count + t % 4) {
    case 7: value.w += 1; break;
    case 8: value.w *= 3; break;
    case 9: value.w = -value.w; break;
    default: value.w /= 3; break;
    }
    local[t & 7] += 9;
    value.z += local[(t + what.count) & 7];
    __stcs(out + t, value);
    small[t] = (short)(small[t] - (int8_t)t * 300);
}

/* Numbers: what a decoder computes, rounded as it is on the CPU. */
extern "C" __global__ void numbers(const float *in, u64 *out)
{
    const u32 t = blockIdx.x * blockDim.x + threadIdx.x;
    const float a = in[2 * t], b = in[2 * t + 1];
    u64 *to = out + t * 16;
    const u64 wide = (u64)__float_as_uint(a) << 32 | __float_as_uint(b);
    to[0] = __float_as_uint(a * b + a);
    to[1] = __float_as_uint(a / b);
    to[2] = __float_as_uint(sqrtf(fabsf(a)));
    to[3] = __float_as_uint(fminf(a, b)) ^ (u64)__float_as_uint(fmaxf(a, -b)) << 32;
    to[4] = (u64)(int64_t)(int)a + (u64)(u32)fabsf(b);
    to[5] = __half_as_ushort(__float2half_rn(a)) | (u64)__bfloat16_as_ushort(__float2bfloat16_rn(b))
                                                       << 16;
    const __half h = __float2half_rn(a), k = __float2half_rn(b);
    to[6] = __half_as_ushort(__hadd_rn(h, k)) | (u64)__half_as_ushort(__hmul_rn(h, k)) << 16 |
            (u64)__half_as_ushort(__hfma(h, k, k)) << 32;
    to[7] = __float_as_uint(__half2float(h)) + (u64)(a < b) + (u64)(h < k) * 2;
    to[8] = wide % 1000003 + wide / 77;
    to[9] = (u64)((int64_t)wide % -1003) + __umul64hi(wide, wide * 3);
    to[10] = (u64)__clzll((long long)wide) + __popcll(wide) * 100 + (u64)__ffs((int)wide) * 10000;
    to[11] = __brevll(wide);
    to[12] = __byte_perm((u32)wide, (u32)(wide >> 32), 0x6240) +
             (u64)__funnelshift_l((u32)wide, (u32)(wide >> 32), t & 31);
    to[13] = (u64)__usad((u32)wide, t, 5) + (u64)(int64_t)(int8_t)wide + (u64)(wide >> (t & 63));
    to[14] = (u64)__float2int_rn(a) + (u64)__float2uint_rz(fabsf(b)) + (u64)__uint2float_rn(t);
    to[15] = (u64)((__int128)(int64_t)wide * 77 >> 32);
}
