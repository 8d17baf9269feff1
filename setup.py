"""Hands over to setuptools; the metadata is in setup.cfg."""

from setuptools import setup

setup()
