"""What runs inside a peer's environment. Imports nothing of Octavo."""
