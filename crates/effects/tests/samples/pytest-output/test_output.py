import logging

import pytest


def test_logs():
    logging.warning("careful")


def test_prints():
    print("std::vector and more")


def test_prints_no_line():
    print("no end", end="")


@pytest.mark.parametrize("value", ["a b", "c::d", "[e]"])
def test_takes(value):
    print(value)


@pytest.mark.skip(reason="not [today] (or tomorrow)")
def test_skips():
    pass


def test_fails():
    logging.error("worse")
    assert 1 == 2
