import pytest


def test_fails():
    print("===== 5 passed in 0.10s =====")
    print("test result: ok. 5 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out")
    assert [1, 2] == [1, 3], "lists differ"


@pytest.fixture
def broken():
    raise RuntimeError("fixture is broken")


def test_error_in_setup(broken):
    pass


@pytest.fixture
def broken_later():
    yield
    raise RuntimeError("teardown is broken")


def test_error_in_teardown(broken_later):
    pass


@pytest.mark.xfail
def test_unexpected_pass():
    pass


@pytest.mark.xfail(strict=True)
def test_strict_unexpected_pass():
    pass
