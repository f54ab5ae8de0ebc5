"""Copies of checkpoints in a bucket, and going on from them on another machine."""
