"""Shared by tests of the PaTH kernels."""

from importlib import import_module

import pytest

MODULES = ("diagonal", "direction", "far", "forward", "near", "prepare", "pull", "unprepare")


@pytest.fixture
def new_launches():
    """Forgets launches, which are remembered by their sizes, before and after a test that changes other settings."""
    forget()
    yield
    forget()


def forget():
    for name in MODULES:
        for found in vars(import_module(f"bearings.kernels.path.{name}")).values():
            if hasattr(found, "cache_clear"):
                found.cache_clear()
