"""The page of `rankwise report`: what was measured, as one HTML file that judges itself."""
