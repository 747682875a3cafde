"""Shared by all tests: hypothesis keeps no deadline, since machines that run them are busy."""

from hypothesis import settings

settings.register_profile("wsync", deadline=None)
settings.load_profile("wsync")
