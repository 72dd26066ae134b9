"""Warnings about results."""
