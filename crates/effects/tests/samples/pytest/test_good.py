import pytest


def test_passes():
    assert 1 + 1 == 2


@pytest.mark.parametrize("text", ["a", "b::c", "with space"])
def test_each(text):
    assert text


class TestGroup:
    def test_inside(self):
        print("1 failed, 2 passed in 0.10s")


@pytest.mark.skip(reason="not today")
def test_skipped():
    pass


@pytest.mark.xfail(reason="known bug")
def test_expected_failure():
    assert False


@pytest.mark.slow
def test_slow():
    pass
