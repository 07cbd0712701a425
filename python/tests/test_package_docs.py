# SPDX-License-Identifier: Apache-2.0
"""The blocks of code of the pages for users. Python runs as it is printed: the blocks of a page in
turn, in one module; one that opens a file or a model which is not there is compiled alone, one that
connects finds a server. An engine's JSON is read, and what it hands to an adapter are parameters
that the adapter has and settings that the command takes. Settings files pass `kvterrace
check-config`."""

import contextlib
import io
import json
import os
import re
import subprocess
import tempfile
import unittest

import package_case  # and the path to the package

ROOT = os.environ.get("KVT_SOURCE_DIR",
                      os.path.join(os.path.dirname(__file__), "..", ".."))
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.S | re.M)
PAGES = ["README.md"] + [f"docs/{name}.md" for name in (
    "PYTHON", "GUIDE", "EMBEDDING", "ENGINES", "INTEGRATE", "REMOTE", "REFERENCE_MODEL")]
OF_ENGINES = {"type", "module_path", "class_name", "backend_name", "interface_v1"}
SOCKET = "/run/kvterrace.sock"
COMMAND = os.path.join(package_case.BUILD, "kvterrace")


def blocks_of(page, language):
    with open(os.path.join(ROOT, page), encoding="utf-8") as file:
        return [text for kind, text in BLOCK.findall(file.read()) if kind == language]


def adapters_of(value):
    """The objects of a configuration that name one of our modules."""
    if isinstance(value, list):
        return [found for one in value for found in adapters_of(one)]
    if not isinstance(value, dict):
        return []
    own = [value] if str(value.get("module_path", "")).startswith("kvterrace.") else []
    return own + [found for one in value.values() for found in adapters_of(one)]


def place(settings, folder):
    """The settings with their files in a folder, and the profile that they name made there."""
    text = re.sub(r"= *(?:/\S+)?/([^/\s]+)/([^/\s]+)", rf"={folder}/\1-\2", settings)
    for path in re.findall(r"(?m)^(?:store\.)?profile *= *(\S+)", text):
        subprocess.run([COMMAND, "profile", "import", "-q", "-d", path,
                        os.path.join(ROOT, "profiles", "devices.json")], check=True,
                       capture_output=True)
    return text


def check_settings(*given):
    """What `kvterrace check-config` says of settings or a file that are refused, or None."""
    ran = subprocess.run([COMMAND, "check-config", *given], capture_output=True, text=True,
                         check=False)
    return None if ran.returncode == 0 else ran.stdout + ran.stderr


class Pages(unittest.TestCase):
    def lent(self, block):
        """A block that connects to a server: to one that runs."""
        if SOCKET not in block:
            return block
        folder = tempfile.TemporaryDirectory(prefix="kvt-test-")
        self.addCleanup(folder.cleanup)
        lends = package_case.Server(folder.name)
        self.addCleanup(lends.stop)
        return block.replace(SOCKET, lends.socket)

    def run_page(self, page):
        """What its blocks print."""
        names, printed, ran = {}, io.StringIO(), 0
        for number, block in enumerate(blocks_of(page, "python"), 1):
            code = compile(self.lent(block), f"{page}, block {number}", "exec")
            if any(word in block for word in (".open(", ".generate(", "llamacpp")):
                continue
            with contextlib.redirect_stdout(printed):
                exec(code, names)  # the page is ours
            ran += 1
        return ran, printed.getvalue()

    def test_readme(self):
        self.assertEqual(self.run_page("README.md"), (1, "Outcome.STORED\nTrue\n"))

    def test_python(self):
        ran, printed = self.run_page("docs/PYTHON.md")
        self.assertGreater(ran, 2)
        self.assertEqual(printed, "")

    def test_other_pages_compile(self):
        for page in PAGES[2:]:
            self.run_page(page)

    def test_json_of_engines(self):
        seen = set()
        for page in PAGES:
            for block in blocks_of(page, "json"):
                for adapter in adapters_of(json.loads(block)):
                    self.check_adapter(page, adapter)
                    seen.add(adapter["module_path"])
        self.assertEqual(seen, {"kvterrace.vllm", "kvterrace.lmcache", "kvterrace.sglang"})

    def check_adapter(self, page, adapter):
        module = adapter["module_path"].partition(".")[2]
        with open(os.path.join(ROOT, "python", "src", "kvterrace", module + ".py"),
                  encoding="utf-8") as file:
            source = file.read()
        name = adapter.get("class_name", adapter.get("type"))
        self.assertRegex(source, rf"(?m)^class {name}\b", page)
        given = adapter.get("adapter_params", adapter.get("kvterrace", adapter))
        for key in given.keys() - OF_ENGINES:
            self.assertRegex(source, rf"\b{key}\b", page)
        if "connect" in given:
            self.assertFalse({"config", "settings"} & given.keys(), page)
        settings = given.get("settings", {"tier.dram.capacity": "1GiB"})
        with tempfile.TemporaryDirectory() as folder:
            text = "".join(f"{key}={value}\n" for key, value in settings.items())
            options = [f"--set={one}" for one in place(text, folder).splitlines()]
            self.assertIsNone(check_settings(os.devnull, *options), page)

    def test_settings_files(self):
        count = 0
        for page in PAGES:
            for block in blocks_of(page, "ini"):
                with tempfile.TemporaryDirectory() as folder:
                    text = re.sub(r"(?m)^(capacity *= *)\d+Gi?B", r"\g<1>64MiB",
                                  place(block, folder))
                    path = os.path.join(folder, "kvt.ini")
                    with open(path, "w", encoding="utf-8") as file:
                        file.write(text)
                    self.assertIsNone(check_settings(path), f"{page}: {block}")
                    count += 1
        self.assertGreater(count, 2)


if __name__ == "__main__":
    unittest.main()
