#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A training run of the reference model that was stopped and resumed ends with the same weights as
one that was not. Skipped without torch: nothing else of the project needs it."""

import os
import sys
import tempfile
import unittest

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(SOURCE, "reference_model"))
sys.dont_write_bytecode = True
try:
    import torch
    import train
except ImportError as error:
    print("skipped: %s" % error)
    sys.exit(77)


class TrainingTest(unittest.TestCase):
    def setUp(self):
        before = train.STEP_TOKENS
        train.STEP_TOKENS = 256
        self.addCleanup(setattr, train, "STEP_TOKENS", before)

    def test_a_resumed_run_ends_as_an_uninterrupted_one(self):
        whole, first, second = train.Run(5), train.Run(5), train.Run(6)
        second.seed = 5
        for _ in range(4):
            whole.step()
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "checkpoint")
            first.step()
            first.step()
            first.save(path)
            second.load(path)
        second.step()
        second.step()
        self.assertEqual(second.state["step"], 4)
        self.assertEqual(second.state["tokens"], whole.state["tokens"])
        for (name, a), b in zip(whole.model.named_parameters(), second.model.parameters()):
            self.assertTrue(torch.equal(a, b), name)
        self.assertFalse(torch.equal(first.model.embedding, second.model.embedding))

    def test_a_step_lowers_the_loss_of_its_batch(self):
        run = train.Run(5)
        data = train.batch(5, 0, 0)
        before = float(train.step_loss(run.model, *data)[0])
        for _ in range(5):
            run.state["step"] = 0
            run.step()
        self.assertLess(float(train.step_loss(run.model, *data)[0]), before)


if __name__ == "__main__":
    unittest.main()
