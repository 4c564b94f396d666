import unittest


class Good(unittest.TestCase):
    def test_passes(self):
        self.assertEqual(1, 1)

    def test_documented(self):
        """What a docstring does to the row."""

    @unittest.skip("not today")
    def test_skipped(self):
        pass

    @unittest.expectedFailure
    def test_expected_failure(self):
        self.fail("known")

    def test_subtests(self):
        for n in range(3):
            with self.subTest(n=n):
                self.assertLess(n, 5)
