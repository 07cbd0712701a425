/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kill_point.h - named places at which a test kills the process.
 *
 * A kill point stands after every step that changes what a later open finds: a file that was made,
 * a label, a row, a lock. It compiles to nothing in the product. The killable build of the rooms
 * (cmake/tests.cmake, KVT_KILL_POINTS) puts every point into one linker section, so that a test
 * program lists the points that exist, and calls kvt_kill_point, which that program defines.
 *
 *     KILL_POINT("open: labels written");
 *
 * Names are "room or flow: state reached"; two places share a name only when they mean one state.
 */
#ifndef TIERS_KILL_POINT_H
#define TIERS_KILL_POINT_H

#ifdef KVT_KILL_POINTS

/* Called by any thread, also under locks; it returns unless it ends the process. */
void kvt_kill_point(const char *const *point);

#define KILL_POINT(name)                                                                           \
    do {                                                                                           \
        static const char *const kill_point_name                                                   \
            __attribute__((section("kvt_kill_points"), used)) = (name);                            \
        kvt_kill_point(&kill_point_name);                                                          \
    } while (0)

#else

#define KILL_POINT(name) ((void)0)

#endif

#endif
