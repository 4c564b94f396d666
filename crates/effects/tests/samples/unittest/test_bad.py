import unittest


class Bad(unittest.TestCase):
    def test_fails(self):
        self.assertEqual(1, 2, "numbers differ")

    def test_errors(self):
        raise RuntimeError("boom")

    @unittest.expectedFailure
    def test_unexpected_success(self):
        pass

    def test_subtests_fail(self):
        for n in range(3):
            with self.subTest(n=n):
                self.assertNotEqual(n, 1)
