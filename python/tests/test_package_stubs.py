#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The stub names what the package has: classes, methods and their parameters, and no others."""

import ast
import importlib
import inspect
import os
import unittest

from package_case import PackageCase, kvterrace

MODULES = ["codec", "policy"]
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
            members = {key: value for one in reversed(real.__mro__[:-1])
                       for key, value in vars(one).items()}
            methods = {key for key, value in members.items() if not key.startswith("_") and
                       (callable(value) or isinstance(value, (classmethod, property)))}
            self.assertEqual({key for key in stubs if not key.startswith("_")}, methods, name)
            for key in methods:
                if isinstance(members[key], property):
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


class Modules(PackageCase):
    def test_the_same_functions_and_parameters(self):
        for name in MODULES:
            module = importlib.import_module(f"kvterrace.{name}")
            with open(module.__file__ + "i", encoding="utf-8") as file:
                body = ast.parse(file.read()).body
            stubs = {node.name: node for node in body
                     if isinstance(node, (ast.FunctionDef, ast.ClassDef))
                     and not node.name.startswith("_")}
            self.assertEqual(set(stubs), set(module.__all__), name)
            for key, node in stubs.items():
                real = getattr(module, key)
                if isinstance(node, ast.FunctionDef):
                    self.assertEqual(parameters_of(node.args), list(
                        inspect.signature(real).parameters), f"{name}.{key}")
                    continue
                if hasattr(real, "_fields"):
                    self.assertEqual([one.target.id for one in node.body
                                      if isinstance(one, ast.AnnAssign)], list(real._fields))
                    continue
                methods = {one.name: one for one in node.body if isinstance(one, ast.FunctionDef)}
                slots = {one for one, value in vars(real).items() if not one.startswith("_") and
                         inspect.ismemberdescriptor(value)}
                said = {one.target.id for one in node.body if isinstance(one, ast.AnnAssign)}
                self.assertLessEqual(slots, said, key)
                found = {one for one, value in vars(real).items() if not one.startswith("_") and
                         (callable(value) or isinstance(value, (classmethod, property)))}
                self.assertEqual({one for one in methods if not one.startswith("_")}, found, key)
                for one in found:
                    if isinstance(vars(real)[one], property):
                        continue
                    real_one = vars(real)[one]
                    if isinstance(real_one, classmethod):
                        real_one = real_one.__func__
                    self.assertEqual(parameters_of(methods[one].args), list(
                        inspect.signature(real_one).parameters), f"{key}.{one}")


def parameters_of(arguments):
    names = [one.arg for one in arguments.args + arguments.kwonlyargs]
    return names + ([arguments.kwarg.arg] if arguments.kwarg else [])


if __name__ == "__main__":
    unittest.main()
