"""fleet: many models on one machine, and which of them have its memory when. It knows no HTTP."""
