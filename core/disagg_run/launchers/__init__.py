"""How agents get started on nodes."""
