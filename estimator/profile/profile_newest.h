/* SPDX-License-Identifier: Apache-2.0 */
/*
 * profile_newest.h - which run answers for what, once, for everyone who asks in SQL: what was
 * measured here before what was imported, a complete run before an interrupted one, a newer one
 * before an older one. Constant text; any thread.
 */
#ifndef ESTIMATOR_PROFILE_NEWEST_H
#define ESTIMATOR_PROFILE_NEWEST_H

/* ORDER BY terms of run r, best first. */
#define PROFILE_ORDER "r.kind = 'import', r.complete DESC, r.id DESC"

/*
 * Common table expressions; a SELECT follows. place: runs in the order above. ?1 is NULL, or 0 for
 * measured runs alone, or 1 for imports alone. reads and writes: the device rows that answer by
 * name, the writes of the same hardware or file as the reads. SQLite gives the columns beside a
 * min() from the row that has it.
 */
#define PROFILE_DEVICES                                                                            \
    "WITH place (run_id, place) AS (SELECT r.id, row_number() OVER (ORDER BY " PROFILE_ORDER       \
    ") FROM run r WHERE ?1 IS NULL OR (r.kind = 'import') = ?1), "                                 \
    "reads AS (SELECT d.name, d.identity, d.id AS device_id, d.run_id, min(p.place) AS place "     \
    "FROM device d JOIN place p USING (run_id) JOIN device_fit f ON f.device_id = d.id AND "       \
    "f.kind = 0 GROUP BY d.name), "                                                                \
    "writes AS (SELECT d.name, d.id AS device_id, d.run_id, min(p.place) AS place FROM device d "  \
    "JOIN place p USING (run_id) JOIN reads a ON a.name = d.name AND a.identity = d.identity "     \
    "JOIN device_fit f ON f.device_id = d.id AND f.kind = 1 GROUP BY d.name), "                    \
    "mixed AS (SELECT d.name, d.id AS device_id, d.run_id, min(p.place) AS place FROM device d "   \
    "JOIN place p USING (run_id) JOIN reads a ON a.name = d.name AND a.identity = d.identity "     \
    "JOIN device_mixed m ON m.device_id = d.id GROUP BY d.name), "                                 \
    "speeds AS (SELECT c.*, min(p.place) AS place FROM codec_curve c JOIN place p USING (run_id) " \
    "GROUP BY c.codec, c.mode, c.rate, c.isa, c.threads, c.source), "                              \
    "learning AS (SELECT l.*, min(p.place) AS place FROM learned l JOIN place p USING (run_id) "   \
    "GROUP BY l.kind, l.name, l.part)"

/* The same, and the runs of devices, codecs and stores that answer for anything. */
#define PROFILE_ANSWERING                                                                          \
    PROFILE_DEVICES                                                                                \
    ", answering (run_id) AS (SELECT run_id FROM reads UNION SELECT run_id FROM writes UNION "     \
    "SELECT run_id FROM mixed UNION SELECT run_id FROM speeds UNION SELECT run_id FROM learning) "

#endif
