"""The page of `python -m parse.report`: what was measured, as one HTML file that judges itself."""
