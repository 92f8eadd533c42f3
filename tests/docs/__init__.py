"""Tests of the documentation: its blocks run, its site builds, its reference is complete."""
