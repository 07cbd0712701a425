# SPDX-License-Identifier: Apache-2.0
"""What tests of the kvterrace command share: a folder of their own, and runs of the command in it.

The command's path is the test program's first argument. Where the first word of a command line is
kvlab, it is that program's, beside the command.
"""

import csv
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

COMMAND = os.path.abspath(sys.argv.pop(1)) if len(sys.argv) > 1 else "kvterrace"

WORKLOAD = ["--workload", "poisson", "--set", "workload.requests=200", "--set",
            "workload.tokens_median=2000", "--set", "workload.tokens_max=8000"]


def command_line(*words):
    if words[:1] == ("kvlab",):
        return [os.path.join(os.path.dirname(COMMAND), "kvlab"), *words[1:]]
    return [COMMAND, *words]


def rows_document(text):
    """The document of tables that are short to write: a line [table], a line of names, then a line
    of values for each row. An empty value is no field, a value that reads as a number is one."""
    def value(cell):
        try:
            number = json.loads(cell)
        except ValueError:
            return cell
        return number if isinstance(number, (int, float)) else cell

    tables, names, rows = {}, None, None
    for cells in csv.reader(text.splitlines()):
        if len(cells) == 1 and cells[0].startswith("["):
            names, rows = None, tables.setdefault(cells[0][1:-1], [])
        elif names is None:
            names = cells
        else:
            rows.append({name: value(cell) for name, cell in zip(names, cells) if cell})
    return json.dumps({"schema": "kvterrace-profile-export-1", "tables": tables})


class CommandCase(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="kvterrace-test-")
        self.addCleanup(shutil.rmtree, self.folder)

    def path(self, name):
        return os.path.join(self.folder, name)

    def put(self, name, text):
        with open(self.path(name), "wb") as file:
            file.write(text if isinstance(text, bytes) else text.encode())
        return self.path(name)

    def put_rows(self, name, text):
        return self.put(name, rows_document(text))

    def run_command(self, *arguments, code=0, environment=None):
        result = subprocess.run(command_line(*arguments), cwd=self.folder, text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=1000,
                                stdin=subprocess.DEVNULL, env=environment)
        self.assertEqual(result.returncode, code, result.stdout + result.stderr)
        return result

    def run_json(self, *arguments, code=0):
        return json.loads(self.run_command(*arguments, "--json", code=code).stdout)

    def fails(self, part, *arguments, code=2):
        """The command says why on stderr, prints no data, and leaves with the code."""
        result = self.run_command(*arguments, code=code)
        self.assertIn(part, result.stderr)
        self.assertEqual(result.stdout, "")
        return result
