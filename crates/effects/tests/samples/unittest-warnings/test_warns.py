import sys
import unittest
import warnings


class Warns(unittest.TestCase):
    def test_warns(self):
        warnings.warn("old", DeprecationWarning)

    def test_warns_below_its_docstring(self):
        """It has one ... with dots."""
        warnings.warn("older", DeprecationWarning)

    def test_leaves_a_file_open(self):
        open("/dev/null")

    def test_prints_and_fails(self):
        print("ok then", file=sys.stderr)
        self.assertEqual(1, 2)

    @unittest.skip("not ... now")
    def test_is_skipped(self):
        pass

    def test_has_subtests(self):
        for n in range(3):
            with self.subTest(n=n):
                self.assertLess(n, 1)
