"""The files of a release: built, checked, and tried on every Python that the project supports."""
