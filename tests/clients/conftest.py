"""Servers for scripted clients are those of the HTTP side's tests."""

from tests.http.conftest import make_server

__all__ = ["make_server"]
