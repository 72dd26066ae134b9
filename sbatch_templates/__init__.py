"""The job script: a template and the sites it is rendered for."""
