"""Where checkpoints live: filesystem, object storage, memory."""
