"""`luce calibrate`: which layer `--kvflash-layer` should name. Called by the group of commands alone; calls the
engine's process and client, and the text library."""
