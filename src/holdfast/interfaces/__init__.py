"""Faces of the service: command line, HTTP, page."""
