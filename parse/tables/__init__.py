"""Tables of published results whose columns are named, read into results like any other."""
