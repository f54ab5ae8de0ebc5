"""Reference tables by the system that keeps them: a version, a hash of the files, or a copied query."""
