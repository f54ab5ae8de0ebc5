"""The manager: runs pipeline files as processes of their own, keeps them running, and answers for them over HTTP."""
