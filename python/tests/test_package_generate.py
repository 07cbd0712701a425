#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The binding is made from the headers: what it cannot read ends the build."""

import os
import re
import shutil
import subprocess
import sys
import unittest

from package_case import PackageCase

ROOM = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SOURCE = os.path.dirname(ROOM)


# Functions of the headers that the package does not wrap, with the reason. `lib` has them all.
UNWRAPPED = {
    "the same by another call": [
        "kvt_space_init", "kvt_space_init_sized", "kvt_key_space",
        "kvt_store_options_init", "kvt_store_options_init_sized", "kvt_policy_config_init",
        "kvt_variant_drops_tokens", "kvt_dtype_bytes", "kvt_layout_matrix_bytes",
        "kvt_layout_matrix_offset", "kvt_tier_name"],
    "layered loads": ["kvt_load_begin", "kvt_load_layers", "kvt_load_total", "kvt_load_wait",
                      "kvt_load_quality_of", "kvt_load_release", "kvt_load_status", "kvt_load_end",
                      "kvt_pass_begin", "kvt_pass_layer", "kvt_pass_end", "kvt_pass_table_set"],
    "devices while they run: the command has it": [
        "kvt_device_change", "kvt_device_add"],
    "offline, by the command": [
        "kvt_recover_options_init", "kvt_recover_options_init_sized", "kvt_store_recover",
        "kvt_store_rekey",
        "kvt_operations_get", "kvt_watch_write"],
    "the end of an early open is what the next call says": [
        "kvt_store_wait"],
    "batches are called off by the queue's close and by tasks that are cancelled": [
        "kvt_queue_cancel"],
    "models of prefill are settings of a store": [
        "kvt_prefill_preset_get", "kvt_prefill_preset_name", "kvt_prefill_seconds"],
    "a basis stays as long as its store; kvterrace inspect lists them": [
        "kvt_basis_get", "kvt_basis_remove"],
    "other hosts are settings of a store": [
        "kvt_remote_options_init", "kvt_remote_options_init_sized"],
    "copies on other hosts belong to those who have a remote tier": [
        "kvt_policy_copy_set", "kvt_policy_copy_chance"],
    "an engine that is given costs once and keeps them": [
        "kvt_policy_tenant_set", "kvt_policy_recost", "kvt_policy_resize",
        "kvt_policy_speed_set"],
    "drives that answer late are those of a store": [
        "kvt_policy_withheld_set"],
    "what is known of uses goes from one life of a store to the next within the store": [
        "kvt_policy_uses_get", "kvt_policy_uses_set", "kvt_policy_weights_set"],
}

# Headers of which nothing is wrapped: decoding over sequences that are larger than memory, whose
# steps are a loop of an engine in C; memory of a GPU, as layered loads; rings, whose producers are
# threads and kernels.
UNWRAPPED_HEADERS = {"sparse.h", "gpu.h", "ring.h"}


class Reach(PackageCase):
    def test_every_function_is_wrapped_or_said_not_to_be(self):
        sys.path.insert(0, ROOM)
        import generate
        include = os.path.join(SOURCE, "include")
        names = generate.declared_names(include)
        for name in UNWRAPPED_HEADERS & set(generate.list_headers(include)):
            names -= set(re.findall(r"^(?:KVT_API|static inline)[^;]*?\b(kvt_\w+)\s*\(",
                                    generate.read_header(include, name), re.M))
        text = ""
        for folder, _, files in os.walk(os.path.join(ROOM, "src")):
            for name in files:
                if name.endswith((".py", ".h", ".c")):
                    with open(os.path.join(folder, name), encoding="utf-8") as file:
                        text += file.read()
        used = set(re.findall(r"\b(?:guarded_)?(kvt_\w+)\b", text))
        said = [name for group in UNWRAPPED.values() for name in group]
        self.assertEqual(sorted(names - used), sorted(said))


class Generate(PackageCase):
    def generate(self, change):
        """Runs the generator on the headers with one change; (exit code, what it says)."""
        folder = self.folder()
        include = os.path.join(folder, "include")
        shutil.copytree(os.path.join(SOURCE, "include"), include)
        change(os.path.join(include, "kvterrace", "names.h"))
        output = os.path.join(folder, "binding.c")
        done = subprocess.run([sys.executable, os.path.join(ROOM, "generate.py"), include,
                               os.path.join(ROOM, "src"), output], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, check=False)
        text = ""
        if done.returncode == 0:
            with open(output, encoding="utf-8") as file:
                text = file.read()
        return done.returncode, done.stdout, text

    def edit(self, old, new):
        def change(path):
            with open(path, encoding="utf-8") as file:
                text = file.read()
            self.assertIn(old, text)
            with open(path, "w", encoding="utf-8") as file:
                file.write(text.replace(old, new, 1))
        return change

    def test_new_functions_come_in(self):
        code, said, text = self.generate(self.edit(
            "KVT_API KVT_NODISCARD kvt_status kvt_store_touch(",
            "KVT_API KVT_NODISCARD kvt_status kvt_brand_new(kvt_store *store, const kvt_key *key);"
            "\nKVT_API KVT_NODISCARD kvt_status kvt_store_touch("))
        self.assertEqual(code, 0, said)
        self.assertIn("guarded_kvt_brand_new(kvtpy_handle *guard, const uint8_t *key)", text)

    def test_a_function_that_the_cdef_lacks_fails(self):
        code, said, _ = self.generate(self.edit(
            "KVT_API KVT_NODISCARD kvt_status kvt_store_touch(",
            "#if 0\nKVT_API kvt_status kvt_hidden(int number);\n#endif\n"
            "KVT_API KVT_NODISCARD kvt_status kvt_store_touch("))
        self.assertNotEqual(code, 0)
        self.assertIn("lacking: ['kvt_hidden']", said)

    def test_a_function_without_a_mark_fails(self):
        code, said, _ = self.generate(self.edit(
            "KVT_API KVT_NODISCARD kvt_status kvt_store_touch(", "kvt_status kvt_store_touch("))
        self.assertNotEqual(code, 0)
        self.assertIn("not in the headers: ['kvt_store_touch']", said)


if __name__ == "__main__":
    unittest.main()
