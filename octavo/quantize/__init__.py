"""How weights get fewer bits."""
