"""Changes of PostgreSQL tables: a first copy, then logical decoding from a slot that is let go of late."""
