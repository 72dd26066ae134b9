"""A benchmark of tools that look for stragglers: small trainings with known delays, and what each tool says of them."""
