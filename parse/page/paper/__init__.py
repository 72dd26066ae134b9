"""The scaling section of a paper or a proposal, as LaTeX or Markdown, with its figure."""
