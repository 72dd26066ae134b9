"""Speeds, as ratios taken in one run: `make bench`. No test asserts any of them."""
