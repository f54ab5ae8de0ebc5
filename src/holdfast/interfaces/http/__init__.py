"""The HTTP API: of a pipeline in its own process, and of the manager. docs/http_api.md."""
