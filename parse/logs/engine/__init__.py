"""How lines of any log become speeds."""
