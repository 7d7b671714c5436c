"""`luce calibrate`: which layer `--kv-offload-layer` should name. Called by the group of commands alone; calls the
engine's process and client, and the text library."""
