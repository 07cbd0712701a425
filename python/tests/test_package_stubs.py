#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The stub names what the package has: classes, methods and their parameters, and no others."""

import ast
import inspect
import os
import unittest

from package_case import PackageCase, kvterrace

STUB = os.path.join(os.path.dirname(kvterrace.__file__), "__init__.pyi")


class Stubs(PackageCase):
    def setUp(self):
        super().setUp()
        with open(STUB, encoding="utf-8") as file:
            tree = ast.parse(file.read())
        self.classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}

    def test_the_same_classes(self):
        public = {name for name in kvterrace.__all__ if name != "__version__"}
        self.assertEqual({name for name in self.classes if not name.startswith("_")}, public)

    def test_the_same_methods_and_parameters(self):
        checked = 0
        for name in ("Store", "Queue", "View", "Lease", "EventReader", "Space", "Layout"):
            real = getattr(kvterrace, name)
            stubs = {node.name: node for node in self.classes[name].body
                     if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))}
            methods = {key for key, value in vars(real).items() if not key.startswith("_") and
                       (callable(value) or isinstance(value, (classmethod, property)))}
            self.assertEqual({key for key in stubs if not key.startswith("_")}, methods, name)
            for key in methods:
                if isinstance(vars(real)[key], property):
                    continue
                node = stubs[key].args
                said = [arg.arg for arg in node.args + node.kwonlyargs if arg.arg
                        not in ("self", "cls")]
                is_kind = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
                found = [one.name for one in inspect.signature(getattr(real, key)).parameters
                         .values() if one.name != "self" and one.kind not in is_kind]
                self.assertEqual(said, found, f"{name}.{key}")
                checked += 1
        self.assertGreater(checked, 40)


if __name__ == "__main__":
    unittest.main()
