/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_codecs_ptx_values.c - each instruction that has one result, on values whose result the PTX
 * manual gives: a row is the instruction, its sources and the result.
 *
 * %h, %r, %d, %f, %g are registers of 16, 32, 64 bits and floats of 32, 64; %p predicates. Number 0
 * is the result, 1 to 4 are the sources.
 */
#include "cases.h"
#include "ptx_machine.h"

#include <inttypes.h>
#include <stdio.h>

typedef struct row {
    const char *instruction;
    uint64_t sources[4], result;
} row;

static const char head[] =
    ".version 7.0\n.target sm_80\n.address_size 64\n"
    ".visible .entry one(.param .u64 to, .param .u64 p1, .param .u64 p2, "
    ".param .u64 p3, .param .u64 p4)\n{\n"
    ".reg .b16 %h<6>; .reg .b32 %r<6>; .reg .b64 %d<6>; .reg .f32 %f<6>;\n"
    ".reg .f64 %g<6>; .reg .pred %p<6>;\n"
    "mov.b32 %r0, 0; mov.b64 %d0, 0; mov.b16 %h0, 0; mov.f32 %f0, 0f00000000;\n"
    "mov.f64 %g0, 0d0000000000000000; ld.param.u64 %d5, [to];\n";

/* The machine's result of one instruction. */
static uint64_t result_of(const row *one)
{
    char text[4096], error[PTX_ERROR_BYTES];
    int at = snprintf(text, sizeof text, "%s", head);
    for (int i = 1; i <= 4; i++)
        at += snprintf(
            text + at, sizeof text - (size_t)at,
            "ld.param.u64 %%d%d, [p%d]; cvt.u32.u64 %%r%d, %%d%d; cvt.u16.u64 %%h%d, %%d%d;\n"
            "mov.b32 %%f%d, %%r%d; mov.b64 %%g%d, %%d%d; setp.ne.u64 %%p%d, %%d%d, 0;\n",
            i, i, i, i, i, i, i, i, i, i, i, i);
    const char kind = strchr(one->instruction, '%')[1];
    at += snprintf(text + at, sizeof text - (size_t)at, "%s\n", one->instruction);
    const char *move = kind == 'h'   ? "cvt.u64.u16 %d0, %h0;"
                       : kind == 'r' ? "cvt.u64.u32 %d0, %r0;"
                       : kind == 'f' ? "mov.b32 %r0, %f0; cvt.u64.u32 %d0, %r0;"
                       : kind == 'g' ? "mov.b64 %d0, %g0;"
                       : kind == 'p' ? "selp.u64 %d0, 1, 0, %p0;"
                                     : "";
    at += snprintf(text + at, sizeof text - (size_t)at,
                   "%s cvta.to.global.u64 %%d5, %%d5; st.global.u64 [%%d5], %%d0; ret;\n}\n", move);
    ptx_machine *machine = ptx_open(text, (size_t)at, error);
    if (machine == NULL) fail_msg("%s: %s", one->instruction, error);
    uint64_t result = 0;
    const uint64_t to = ptx_map(machine, &result, sizeof result, true);
    const void *parameters[] = {&to, &one->sources[0], &one->sources[1], &one->sources[2],
                                &one->sources[3]};
    ptx_launch launch = {
        .kernel = "one", .grid = {1, 1, 1}, .block = {1, 1, 1}, .parameters = parameters};
    if (!ptx_run(machine, &launch, error)) fail_msg("%s: %s", one->instruction, error);
    ptx_close(machine);
    return result;
}

static void check_rows(const row *rows, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const uint64_t result = result_of(&rows[i]);
        if (result != rows[i].result)
            fail_msg("%s of %#" PRIx64 ", %#" PRIx64 ", %#" PRIx64 ", %#" PRIx64 ": %#" PRIx64
                     ", not %#" PRIx64,
                     rows[i].instruction, rows[i].sources[0], rows[i].sources[1],
                     rows[i].sources[2], rows[i].sources[3], result, rows[i].result);
    }
}

#define CHECK(...)                                                                                 \
    do {                                                                                           \
        static const row rows[] = {__VA_ARGS__};                                                   \
        check_rows(rows, sizeof rows / sizeof *rows);                                              \
    } while (0)

#define MINUS(n) (UINT64_C(0) - (n))
#define LOW(n)   ((uint32_t)MINUS(n))

TEST(sums_and_products)
{
    CHECK({"add.u32 %r0, %r1, %r2;", {UINT32_MAX, 2}, 1},
          {"add.s64 %d0, %d1, %d2;", {5, MINUS(7)}, MINUS(2)},
          {"add.u16 %h0, %h1, %h2;", {0xffff, 3}, 2}, {"sub.s32 %r0, %r1, %r2;", {3, 5}, LOW(2)},
          {"add.sat.s32 %r0, %r1, %r2;", {0x7fffffff, 9}, 0x7fffffff},
          {"sub.sat.s32 %r0, %r1, %r2;", {0x80000000, 1}, 0x80000000},
          {"add.s32 %r0, %r1, -4;", {3}, LOW(1)}, {"add.s32 %r0, %r1, 0x10U;", {3}, 19},
          {"mul.lo.u32 %r0, %r1, %r2;", {0x10001, 0x10001}, 0x20001},
          {"mul.lo.s64 %d0, %d1, %d2;", {MINUS(3), 5}, MINUS(15)},
          {"mul.hi.u32 %r0, %r1, %r2;", {UINT32_MAX, UINT32_MAX}, 0xfffffffe},
          {"mul.hi.s32 %r0, %r1, %r2;", {LOW(1), LOW(1)}, 0},
          {"mul.hi.s32 %r0, %r1, %r2;", {LOW(1), 5}, LOW(1)},
          {"mul.hi.u64 %d0, %d1, %d2;", {UINT64_MAX, UINT64_MAX}, UINT64_MAX - 1},
          {"mul.hi.s64 %d0, %d1, %d2;", {MINUS(1), 7}, UINT64_MAX},
          {"mul.wide.u32 %d0, %r1, %r2;", {UINT32_MAX, UINT32_MAX}, UINT64_C(0xfffffffe00000001)},
          {"mul.wide.s32 %d0, %r1, %r2;", {LOW(3), 7}, MINUS(21)},
          {"mul.wide.u16 %r0, %h1, %h2;", {0xffff, 0xffff}, 0xfffe0001},
          {"mul.wide.s16 %r0, %h1, %h2;", {0xffff, 9}, LOW(9)},
          {"mad.lo.s32 %r0, %r1, %r2, %r3;", {LOW(3), 7, 1}, LOW(20)},
          {"mad.hi.u32 %r0, %r1, %r2, %r3;", {UINT32_MAX, 2, 4}, 5},
          {"mad.wide.u32 %d0, %r1, %r2, %d3;", {UINT32_MAX, 2, 3}, UINT64_C(0x200000001)},
          {"mad.wide.s32 %d0, %r1, %r2, %d3;", {LOW(1), 2, 1}, MINUS(1)},
          {"mad.lo.u16 %h0, %h1, %h2, %h3;", {300, 300, 1}, 90001 % 65536},
          {"sad.u32 %r0, %r1, %r2, %r3;", {3, 10, 100}, 107},
          {"sad.s32 %r0, %r1, %r2, %r3;", {LOW(3), 10, 100}, 113},
          {"add.cc.u32 %r0, %r1, %r2; addc.u32 %r0, %r3, %r4;", {UINT32_MAX, 1, 5, 6}, 12},
          {"add.cc.u64 %d0, %d1, %d2; addc.cc.u64 %d0, %d3, %d4; addc.u64 %d0, 0, 0;",
           {UINT64_MAX, 1, UINT64_MAX, 0},
           1},
          {"sub.cc.u32 %r0, %r1, %r2; subc.u32 %r0, %r3, %r4;", {1, 2, 9, 3}, 5});
}

TEST(quotients_signs_and_extremes)
{
    CHECK(
        {"div.u32 %r0, %r1, %r2;", {100, 7}, 14},
        {"div.s32 %r0, %r1, %r2;", {LOW(100), 7}, LOW(14)},
        {"div.s32 %r0, %r1, %r2;", {0x80000000, LOW(1)}, 0x80000000},
        {"div.u64 %d0, %d1, %d2;", {UINT64_MAX, 3}, UINT64_MAX / 3},
        {"div.s64 %d0, %d1, %d2;", {MINUS(9), 2}, MINUS(4)},
        {"div.u16 %h0, %h1, %h2;", {1000, 7}, 142}, {"div.s16 %h0, %h1, %h2;", {0xfff7, 2}, 0xfffc},
        {"rem.u32 %r0, %r1, %r2;", {100, 7}, 2}, {"rem.s32 %r0, %r1, %r2;", {LOW(100), 7}, LOW(2)},
        {"rem.s64 %d0, %d1, %d2;", {MINUS(9), 2}, MINUS(1)}, {"rem.u64 %d0, %d1, %d2;", {19, 5}, 4},
        {"abs.s32 %r0, %r1;", {LOW(5)}, 5}, {"abs.s64 %d0, %d1;", {MINUS(5)}, 5},
        {"abs.s16 %h0, %h1;", {0xfffb}, 5}, {"neg.s32 %r0, %r1;", {5}, LOW(5)},
        {"neg.s64 %d0, %d1;", {5}, MINUS(5)}, {"neg.s16 %h0, %h1;", {5}, 0xfffb},
        {"min.u32 %r0, %r1, %r2;", {UINT32_MAX, 1}, 1},
        {"min.s32 %r0, %r1, %r2;", {UINT32_MAX, 1}, UINT32_MAX},
        {"max.u32 %r0, %r1, %r2;", {UINT32_MAX, 1}, UINT32_MAX},
        {"max.s32 %r0, %r1, %r2;", {UINT32_MAX, 1}, 1},
        {"max.s64 %d0, %d1, %d2;", {MINUS(1), 0}, 0}, {"min.u64 %d0, %d1, %d2;", {MINUS(1), 7}, 7},
        {"min.s16 %h0, %h1, %h2;", {0x8000, 1}, 0x8000},
        {"max.u16 %h0, %h1, %h2;", {0x8000, 1}, 0x8000});
}

TEST(bits)
{
    CHECK(
        {"and.b32 %r0, %r1, %r2;", {0xff00ff, 0x0ff0f0}, 0x0f00f0},
        {"or.b64 %d0, %d1, %d2;", {1, 1ull << 63}, (1ull << 63) + 1},
        {"xor.b16 %h0, %h1, %h2;", {0xffff, 0x0f0f}, 0xf0f0},
        {"not.b32 %r0, %r1;", {0xf}, 0xfffffff0}, {"not.b16 %h0, %h1;", {0xf}, 0xfff0},
        {"cnot.b32 %r0, %r1;", {0}, 1}, {"cnot.b32 %r0, %r1;", {7}, 0},
        {"and.pred %p0, %p1, %p2;", {1, 0}, 0}, {"or.pred %p0, %p1, %p2;", {1, 0}, 1},
        {"xor.pred %p0, %p1, %p2;", {1, 1}, 0}, {"not.pred %p0, %p1;", {0}, 1},
        {"shl.b32 %r0, %r1, %r2;", {3, 31}, 0x80000000}, {"shl.b32 %r0, %r1, %r2;", {3, 32}, 0},
        {"shl.b64 %d0, %d1, %r2;", {3, 63}, 1ull << 63},
        {"shl.b16 %h0, %h1, %r2;", {3, 15}, 0x8000},
        {"shr.u32 %r0, %r1, %r2;", {0x80000000, 31}, 1},
        {"shr.u32 %r0, %r1, %r2;", {0x80000000, 200}, 0},
        {"shr.s32 %r0, %r1, %r2;", {0x80000000, 200}, UINT32_MAX},
        {"shr.s32 %r0, %r1, %r2;", {0x80000000, 4}, 0xf8000000},
        {"shr.s64 %d0, %d1, %r2;", {MINUS(8), 2}, MINUS(2)},
        {"shr.b64 %d0, %d1, %r2;", {MINUS(8), 60}, 15},
        {"shr.s16 %h0, %h1, %r2;", {0x8000, 3}, 0xf000},
        {"shf.l.wrap.b32 %r0, %r1, %r2, %r3;", {0x89abcdef, 0x01234567, 8}, 0x23456789},
        {"shf.l.wrap.b32 %r0, %r1, %r2, %r3;", {0x89abcdef, 0x01234567, 40}, 0x23456789},
        {"shf.l.clamp.b32 %r0, %r1, %r2, %r3;", {0x89abcdef, 0x01234567, 40}, 0x89abcdef},
        {"shf.r.wrap.b32 %r0, %r1, %r2, %r3;", {0x89abcdef, 0x01234567, 8}, 0x6789abcd},
        {"shf.r.clamp.b32 %r0, %r1, %r2, %r3;", {0x89abcdef, 0x01234567, 99}, 0x01234567},
        {"clz.b32 %r0, %r1;", {0}, 32}, {"clz.b32 %r0, %r1;", {1}, 31},
        {"clz.b64 %r0, %d1;", {0}, 64}, {"clz.b64 %r0, %d1;", {1ull << 40}, 23},
        {"popc.b32 %r0, %r1;", {0xf0f1}, 9}, {"popc.b64 %r0, %d1;", {UINT64_MAX}, 64},
        {"brev.b32 %r0, %r1;", {1}, 0x80000000}, {"brev.b64 %d0, %d1;", {6}, 3ull << 61},
        {"bfind.u32 %r0, %r1;", {0}, UINT32_MAX}, {"bfind.u32 %r0, %r1;", {0x500}, 10},
        {"bfind.s32 %r0, %r1;", {LOW(1)}, UINT32_MAX}, {"bfind.s32 %r0, %r1;", {LOW(5)}, 2},
        {"bfind.shiftamt.u32 %r0, %r1;", {0x500}, 21}, {"bfind.u64 %r0, %d1;", {1ull << 50}, 50},
        {"bfe.u32 %r0, %r1, %r2, %r3;", {0x12345678, 8, 12}, 0x456},
        {"bfe.s32 %r0, %r1, %r2, %r3;", {0x00000f80, 7, 5}, UINT32_MAX},
        {"bfe.u32 %r0, %r1, %r2, %r3;", {0x12345678, 28, 12}, 1},
        {"bfe.s32 %r0, %r1, %r2, %r3;", {0x92345678, 28, 12}, 0xfffffff9},
        {"bfe.s32 %r0, %r1, %r2, %r3;", {0x80000000, 40, 4}, UINT32_MAX},
        {"bfe.u32 %r0, %r1, %r2, %r3;", {0x80000000, 40, 4}, 0},
        {"bfe.u64 %d0, %d1, %r2, %r3;", {0xabcull << 40, 40, 8}, 0xbc},
        {"bfe.s32 %r0, %r1, %r2, %r3;", {7, 0, 0}, 0},
        {"bfi.b32 %r0, %r1, %r2, %r3, %r4;", {0xab, 0xffffffff, 8, 8}, 0xffffabff},
        {"bfi.b32 %r0, %r1, %r2, %r3, %r4;", {0xab, 0x11, 33, 8}, 0x11},
        {"bfi.b64 %d0, %d1, %d2, %r3, %r4;", {5, 0, 60, 8}, 5ull << 60},
        {"prmt.b32 %r0, %r1, %r2, %r3;", {0x33221100, 0x77665544, 0x7531}, 0x77553311},
        {"prmt.b32 %r0, %r1, %r2, 0x7440;", {0x33221100, 0x4b000000}, 0x4b000000},
        {"prmt.b32 %r0, %r1, %r2, %r3;", {0x00008000, 0, 0x9}, 0xff},
        {"lop3.b32 %r0, %r1, %r2, %r3, 0x96;", {0xff00, 0xf0f0, 0xcccc}, 0xff00 ^ 0xf0f0 ^ 0xcccc},
        {"lop3.b32 %r0, %r1, %r2, %r3, 0xca;",
         {0xff00, 0xf0f0, 0xcccc},
         (0xff00 & 0xf0f0) | (0x00ff & 0xcccc)});
}

TEST(choices_and_comparisons)
{
    CHECK({"selp.b32 %r0, %r1, %r2, %p3;", {4, 5, 1}, 4},
          {"selp.f32 %f0, %f1, %f2, %p3;", {4, 5, 0}, 5}, {"selp.u16 %h0, 1, 0, %p1;", {1}, 1},
          {"slct.s32.s32 %r0, %r1, %r2, %r3;", {4, 5, LOW(1)}, 5},
          {"slct.b64.s32 %d0, %d1, %d2, %r3;", {4, 5, 0}, 4},
          {"slct.u32.f32 %r0, %r1, %r2, %f3;", {4, 5, 0x80000000}, 4},
          {"slct.u32.f32 %r0, %r1, %r2, %f3;", {4, 5, 0x7fc00000}, 5},
          {"setp.lt.s32 %p0, %r1, %r2;", {LOW(1), 1}, 1},
          {"setp.lt.u32 %p0, %r1, %r2;", {LOW(1), 1}, 0},
          {"setp.hs.u32 %p0, %r1, %r2;", {LOW(1), 1}, 1}, {"setp.ls.u64 %p0, %d1, %d2;", {1, 1}, 1},
          {"setp.ge.s64 %p0, %d1, %d2;", {MINUS(1), MINUS(1)}, 1},
          {"setp.ne.b16 %p0, %h1, %h2;", {1, 2}, 1}, {"setp.gt.s16 %p0, %h1, %h2;", {0xffff, 2}, 0},
          {"setp.eq.and.u32 %p0, %r1, %r2, %p3;", {1, 1, 0}, 0},
          {"setp.eq.or.u32 %p0, %r1, %r2, !%p3;", {1, 2, 0}, 1},
          {"setp.eq.xor.u32 %p0, %r1, %r2, %p3;", {1, 1, 1}, 0},
          {"setp.eq.u32 %p5|%p0, %r1, %r2;", {1, 2}, 1},
          {"set.lt.u32.s32 %r0, %r1, %r2;", {LOW(1), 1}, UINT32_MAX},
          {"set.gt.f32.s32 %f0, %r1, %r2;", {2, 1}, 0x3f800000},
          {"set.eq.u32.f32 %r0, %f1, %f2;", {0x7fc00000, 0x7fc00000}, 0},
          {"setp.lt.f32 %p0, %f1, %f2;", {0xbf800000, 0}, 1},
          {"setp.eq.f32 %p0, %f1, %f2;", {0x80000000, 0}, 1},
          {"setp.ne.f32 %p0, %f1, %f2;", {0x7fc00000, 0}, 0},
          {"setp.neu.f32 %p0, %f1, %f2;", {0x7fc00000, 0}, 1},
          {"setp.ltu.f32 %p0, %f1, %f2;", {0x7fc00000, 0}, 1},
          {"setp.ge.f32 %p0, %f1, %f2;", {0x7fc00000, 0}, 0},
          {"setp.geu.f32 %p0, %f1, %f2;", {0x7fc00000, 0}, 1},
          {"setp.equ.f32 %p0, %f1, %f2;", {0x3f800000, 0x40000000}, 0},
          {"setp.leu.f32 %p0, %f1, %f2;", {0x3f800000, 0x40000000}, 1},
          {"setp.gtu.f32 %p0, %f1, %f2;", {0x3f800000, 0x40000000}, 0},
          {"setp.num.f32 %p0, %f1, %f2;", {0, 0x7f800001}, 0},
          {"setp.nan.f32 %p0, %f1, %f1;", {0x7f800001}, 1},
          {"setp.gt.f64 %p0, %g1, %g2;", {0x3ff0000000000000, 0}, 1},
          {"setp.lt.f16 %p0, %h1, %h2;", {0xbc00, 0x3c00}, 1});
}

TEST(moves)
{
    CHECK({"mov.u32 %r0, 7;", {0}, 7}, {"mov.b32 %r0, {%h1, %h2};", {0x1111, 0x2222}, 0x22221111},
          {"mov.b64 %d0, {%r1, %r2};", {1, 2}, 0x200000001},
          {"mov.b64 %d0, {%h1, %h2, %h3, %h4};", {1, 2, 3, 4}, 0x4000300020001},
          {"mov.b32 {%h0, %h5}, %r1;", {0x22221111}, 0x1111},
          {"mov.b32 {_, %h0}, %r1;", {0x22221111}, 0x2222},
          {"mov.b64 {%r5, %r0}, %d1;", {0x200000001}, 2}, {"mov.pred %p0, -1;", {0}, 1},
          {"mov.b32 %f0, {0, %h1};", {0x3f80}, 0x3f800000},
          {"mov.f32 %f0, 0f3F800000;", {0}, 0x3f800000}, {"mov.b32 %f0, %r1;", {9}, 9});
}

#define ONE   0x3f800000u
#define NAN32 0x7fffffffu
#define INF32 0x7f800000u

TEST(floats)
{
    CHECK(
        {"add.rn.f32 %f0, %f1, %f2;", {0x4b800000, ONE}, 0x4b800000},
        {"add.rn.f32 %f0, %f1, %f2;", {0x4b800001, ONE}, 0x4b800002},
        {"sub.rn.f32 %f0, %f1, %f2;", {ONE, ONE}, 0},
        {"add.rn.f32 %f0, %f1, %f2;", {0x80000000, 0x80000000}, 0x80000000},
        {"mul.rn.f32 %f0, %f1, %f2;", {0x3f800001, 0x3f800001}, 0x3f800002},
        {"mul.rn.f32 %f0, %f1, %f2;", {0x00800000, 0x3f000000}, 0x00400000},
        {"mul.rn.f32 %f0, %f1, %f2;", {0x7f000000, 0x40800000}, INF32},
        {"mul.rn.f32 %f0, %f1, %f2;", {INF32, 0}, NAN32},
        {"mul.rn.f32 %f0, %f1, %f2;", {0x7f800001, ONE}, NAN32},
        {"fma.rn.f32 %f0, %f1, %f2, %f3;", {0x3f800001, 0x3f800001, 0xbf800002}, 0x28800000},
        {"div.rn.f32 %f0, %f1, %f2;", {ONE, 0x40400000}, 0x3eaaaaab},
        {"div.rn.f32 %f0, %f1, %f2;", {ONE, 0}, INF32},
        {"rcp.rn.f32 %f0, %f1;", {0x40400000}, 0x3eaaaaab},
        {"sqrt.rn.f32 %f0, %f1;", {0x40000000}, 0x3fb504f3},
        {"sqrt.rn.f32 %f0, %f1;", {0xbf800000}, NAN32}, {"abs.f32 %f0, %f1;", {0xbf800000}, ONE},
        {"neg.f32 %f0, %f1;", {ONE}, 0xbf800000},
        {"min.f32 %f0, %f1, %f2;", {0x7fc00000, ONE}, ONE},
        {"max.f32 %f0, %f1, %f2;", {ONE, 0x7fc00000}, ONE},
        {"min.f32 %f0, %f1, %f2;", {0x7f800001, 0x7fc00001}, NAN32},
        {"min.f32 %f0, %f1, %f2;", {0, 0x80000000}, 0x80000000},
        {"max.f32 %f0, %f1, %f2;", {0x80000000, 0}, 0},
        {"max.NaN.f32 %f0, %f1, %f2;", {ONE, 0x7fc00000}, NAN32},
        {"copysign.f32 %f0, %f1, %f2;", {0x80000000, ONE}, 0xbf800000},
        {"add.rn.f64 %g0, %g1, %g2;", {0x3ff0000000000000, 0x3ff0000000000000}, 0x4000000000000000},
        {"fma.rn.f64 %g0, %g1, %g2, %g3;",
         {0x4000000000000000, 0x4000000000000000, 0x3ff0000000000000},
         0x4014000000000000},
        {"div.rn.f64 %g0, %g1, %g2;",
         {0x3ff0000000000000, 0x4000000000000000},
         0x3fe0000000000000});
}

TEST(halves)
{
    CHECK({"add.rn.f16 %h0, %h1, %h2;", {0x3c00, 0x3c00}, 0x4000},
          {"add.rn.f16 %h0, %h1, %h2;", {0x6800, 0x3c00}, 0x6800},
          {"sub.rn.f16 %h0, %h1, %h2;", {0x3c00, 0x4000}, 0xbc00},
          {"mul.rn.f16 %h0, %h1, %h2;", {0x3c01, 0x3c01}, 0x3c02},
          {"mul.rn.f16 %h0, %h1, %h2;", {0x7bff, 0x4000}, 0x7c00},
          {"mul.rn.f16 %h0, %h1, %h2;", {0x0001, 0x3800}, 0},
          {"mul.rn.f16 %h0, %h1, %h2;", {0x7c00, 0}, 0x7fff},
          {"fma.rn.f16 %h0, %h1, %h2, %h3;", {0x3c01, 0x3c01, 0xbc02}, 0x0010},
          {"fma.rn.f16 %h0, %h1, %h2, %h3;", {0x3c10, 0x3c20, 0}, 0x3c30},
          {"fma.rn.f16 %h0, %h1, %h2, %h3;", {0x3c10, 0x3c20, 1}, 0x3c31},
          {"fma.rn.f16 %h0, %h1, %h2, %h3;", {0x3c10, 0x3c20, 0x8001}, 0x3c30},
          {"fma.rn.bf16 %h0, %h1, %h2, %h3;", {0x3f81, 0x3f81, 0xbf82}, 0x3880},
          {"fma.rn.bf16 %h0, %h1, %h2, %h3;", {0x4000, 0x4040, 0x3f80}, 0x40e0},
          {"fma.rn.f16x2 %r0, %r1, %r2, %r3;", {0x3c004000, 0x40003c00, 0x3c003c00}, 0x42004200},
          {"fma.rn.bf16x2 %r0, %r1, %r2, %r3;", {0x3f804000, 0x40003f80, 0x3f803f80}, 0x40404040},
          {"add.rn.f16x2 %r0, %r1, %r2;", {0x3c004000, 0x3c003c00}, 0x40004200},
          {"neg.f16 %h0, %h1;", {0x3c00}, 0xbc00},
          {"abs.bf16x2 %r0, %r1;", {0xbf80c000}, 0x3f804000},
          {"max.f16 %h0, %h1, %h2;", {0x7e00, 0x3c00}, 0x3c00},
          {"min.bf16 %h0, %h1, %h2;", {0xbf80, 0x3f80}, 0xbf80},
          {"max.NaN.bf16 %h0, %h1, %h2;", {0xbf80, 0x7fc0}, 0x7fff});
}

TEST(conversions)
{
    CHECK(
        {"cvt.u32.u16 %r0, %h1;", {0xffff}, 0xffff},
        {"cvt.s32.s16 %r0, %h1;", {0xffff}, UINT32_MAX},
        {"cvt.s64.s32 %d0, %r1;", {LOW(3)}, MINUS(3)}, {"cvt.u16.u32 %h0, %r1;", {0x12345}, 0x2345},
        {"cvt.s8.s32 %r0, %r1;", {0x1ff}, UINT32_MAX}, {"cvt.u8.u32 %r0, %r1;", {0x1ff}, 0xff},
        {"cvt.s32.s8 %r0, %h1;", {0x80}, 0xffffff80}, {"cvt.sat.u8.s32 %r0, %r1;", {LOW(4)}, 0},
        {"cvt.sat.u8.s32 %r0, %r1;", {400}, 255},
        {"cvt.sat.s8.s32 %r0, %r1;", {LOW(400)}, 0xffffff80},
        {"cvt.sat.s16.u32 %h0, %r1;", {UINT32_MAX}, 0x7fff},
        {"cvt.rn.f32.s32 %f0, %r1;", {LOW(7)}, 0xc0e00000},
        {"cvt.rn.f32.u32 %f0, %r1;", {0x1000001}, 0x4b800000},
        {"cvt.rz.f32.u32 %f0, %r1;", {0x1ffffff}, 0x4bffffff},
        {"cvt.rp.f32.u32 %f0, %r1;", {0x1000001}, 0x4b800001},
        {"cvt.rm.f32.s32 %f0, %r1;", {LOW(0x1000001)}, 0xcb800001},
        {"cvt.rn.f32.u64 %f0, %d1;", {UINT64_MAX}, 0x5f800000},
        {"cvt.rz.f32.u64 %f0, %d1;", {UINT64_MAX}, 0x5f7fffff},
        {"cvt.rn.f64.u64 %g0, %d1;", {UINT64_MAX}, 0x43f0000000000000},
        {"cvt.rn.f16.s32 %h0, %r1;", {2049}, 0x6800}, {"cvt.rn.f16.u32 %h0, %r1;", {70000}, 0x7c00},
        {"cvt.rzi.s32.f32 %r0, %f1;", {0xc0200000}, LOW(2)},
        {"cvt.rni.s32.f32 %r0, %f1;", {0x40200000}, 2},
        {"cvt.rni.s32.f32 %r0, %f1;", {0x40600000}, 4},
        {"cvt.rmi.s32.f32 %r0, %f1;", {0xc0200000}, LOW(3)},
        {"cvt.rpi.s32.f32 %r0, %f1;", {0xc0200000}, LOW(2)},
        {"cvt.rzi.u32.f32 %r0, %f1;", {0xc0200000}, 0},
        {"cvt.rzi.u32.f32 %r0, %f1;", {0x7f000000}, UINT32_MAX},
        {"cvt.rzi.s32.f32 %r0, %f1;", {0xff000000}, 0x80000000},
        {"cvt.rzi.s32.f32 %r0, %f1;", {NAN32}, 0},
        {"cvt.rzi.u64.f32 %d0, %f1;", {0x5f000000}, 1ull << 63},
        {"cvt.rzi.s64.f64 %d0, %g1;", {0xc008000000000000}, MINUS(3)},
        {"cvt.rzi.u8.f32 %r0, %f1;", {0x43960000}, 255},
        {"cvt.rni.f32.f32 %f0, %f1;", {0x40200000}, 0x40000000},
        {"cvt.rmi.f32.f32 %f0, %f1;", {0xbf000000}, 0xbf800000},
        {"cvt.sat.f32.f32 %f0, %f1;", {0x40200000}, ONE}, {"cvt.sat.f32.f32 %f0, %f1;", {NAN32}, 0},
        {"cvt.rn.f32.f64 %f0, %g1;", {0x3ff0000010000000}, ONE},
        {"cvt.rp.f32.f64 %f0, %g1;", {0x3ff0000010000000}, ONE + 1},
        {"cvt.f64.f32 %g0, %f1;", {ONE}, 0x3ff0000000000000},
        {"cvt.rn.f16.f32 %h0, %f1;", {0x3f802000}, 0x3c01},
        {"cvt.rn.f16.f32 %h0, %f1;", {0x3f801000}, 0x3c00},
        {"cvt.rn.f16.f32 %h0, %f1;", {0x3f803000}, 0x3c02},
        {"cvt.rz.f16.f32 %h0, %f1;", {0x3f803000}, 0x3c01},
        {"cvt.rp.f16.f32 %h0, %f1;", {0x3f800001}, 0x3c01},
        {"cvt.rm.f16.f32 %h0, %f1;", {0xbf800001}, 0xbc01},
        {"cvt.rn.f16.f32 %h0, %f1;", {0x477fefff}, 0x7bff},
        {"cvt.rn.f16.f32 %h0, %f1;", {0x477ff000}, 0x7c00},
        {"cvt.rz.f16.f32 %h0, %f1;", {INF32}, 0x7c00},
        {"cvt.rz.f16.f32 %h0, %f1;", {0x7f000000}, 0x7bff},
        {"cvt.rn.f16.f32 %h0, %f1;", {0x33800000}, 0x0001},
        {"cvt.rn.f16.f32 %h0, %f1;", {0x33000000}, 0},
        {"cvt.rn.f16.f32 %h0, %f1;", {0x33000001}, 1},
        {"cvt.rn.f16.f32 %h0, %f1;", {0x7fc12345}, 0x7fff},
        {"cvt.f32.f16 %f0, %h1;", {0x3c01}, 0x3f802000},
        {"cvt.f32.f16 %f0, %h1;", {0x0001}, 0x33800000},
        {"cvt.f32.f16 %f0, %h1;", {0xfc00}, 0xff800000}, {"cvt.f32.f16 %f0, %h1;", {0x7e01}, NAN32},
        {"cvt.rn.bf16.f32 %h0, %f1;", {0x3f808000}, 0x3f80},
        {"cvt.rn.bf16.f32 %h0, %f1;", {0x3f818000}, 0x3f82},
        {"cvt.rn.bf16.f32 %h0, %f1;", {0x3f808001}, 0x3f81},
        {"cvt.rz.bf16.f32 %h0, %f1;", {0x3f80ffff}, 0x3f80},
        {"cvt.rn.bf16.f32 %h0, %f1;", {0xff800001}, 0x7fff},
        {"cvt.rn.bf16.f32 %h0, %f1;", {0x7f7fffff}, 0x7f80},
        {"cvt.rn.bf16.f32 %h0, %f1;", {0x00000001}, 0},
        {"cvt.rn.bf16.f32 %h0, %f1;", {0x00018000}, 0x0002},
        {"cvt.rn.bf16x2.f32 %r0, %f1, %f2;", {ONE, 0x40000000}, 0x3f804000},
        {"cvt.rn.f16x2.f32 %r0, %f1, %f2;", {ONE, 0x40000000}, 0x3c004000});
}
