#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The reference of the interface has every declaration of the public headers with its comment."""

import os
import re
import sys
import unittest

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
HEADERS = os.path.join(SOURCE, "include", "kvterrace")
sys.path.insert(0, os.path.join(SOURCE, "tools"))
sys.dont_write_bytecode = True
import make_api  # noqa: E402

SMALL = """/* SPDX-License-Identifier: Apache-2.0 */
/*
 * small.h - a header.
 */
#ifndef SMALL_H
#define SMALL_H
#include "types.h"
#ifdef __cplusplus
extern "C" {
#endif

/* ---- numbers ---- */

#define KVT_SMALL_MAX 4u /* of them */

/* One of *two.
 *   first    the table
 * Ends here. */
typedef struct kvt_small {
    int a; /* with ; and } */
} kvt_small;

typedef void (*kvt_small_call)(void *context);

/* Stands alone. */

/* Adds; KVT_OK. */
KVT_API KVT_NODISCARD int kvt_small_add(kvt_small *small,
                                        int b);
KVT_API void kvt_small_free(kvt_small *small);

/* Twice. */
static inline int kvt_small_twice(int a)
{
    if (a) { return 2 * a; }
    return 0;
}

#endif
"""


class MakeApiTest(unittest.TestCase):
    def test_small(self):
        page = make_api.make_header("small.h", SMALL)
        self.assertEqual(re.findall(r"^### `(.*)`$", page, re.M),
                         ["KVT_SMALL_MAX", "kvt_small", "kvt_small_call", "kvt_small_add",
                          "kvt_small_free", "kvt_small_twice"])
        self.assertIn("**Numbers**", page)
        self.assertIn("#define KVT_SMALL_MAX 4u /* of them */", page)
        self.assertIn("One of \\*two.\n\n```text\n  first    the table\n```\n\nEnds here.", page)
        self.assertIn("```c\nint kvt_small_add(kvt_small *small,\n", page)
        self.assertIn("\n```\n\nAdds; KVT_OK.\n\n### `kvt_small_free`", page)
        self.assertIn("Stands alone.\n\n### `kvt_small_add`", page)
        self.assertIn("```c\nstatic inline int kvt_small_twice(int a);\n```\n\nTwice.", page)
        self.assertNotIn("return", page)
        self.assertNotIn("SMALL_H", page)

    def test_headers(self):
        page = make_api.make_page(HEADERS)
        named = set(re.findall(r"^### `(.*)`$", page, re.M))
        wanted, comments = set(), []
        for name in sorted(os.listdir(HEADERS)):
            with open(os.path.join(HEADERS, name), encoding="utf-8") as file:
                text = file.read()
            wanted |= set(re.findall(r"^KVT_API [^;(]*[ *](kvt_\w+)\(", text, re.M))
            wanted |= set(re.findall(r"^typedef (?:struct|enum) (kvt_\w+)", text, re.M))
            wanted |= set(re.findall(r"^static inline [^;(]*[ *](kvt_\w+)\(", text, re.M))
            comments += re.findall(r"^/\*[ \n*]+(\w[\w ]+)", text, re.M)
            self.assertIn(f"\n## kvterrace/{name}\n", page)
        self.assertGreater(len(wanted), 100)
        self.assertEqual(wanted - named, set())
        for comment in comments:
            if not comment.startswith("SPDX"):
                self.assertIn(comment, page)
        self.assertEqual(page.count("```") % 2, 0)


if __name__ == "__main__":
    unittest.main()
