"""supervisor/cli/pipeline: stages of a shell pipeline: `luce tokenize | luce-daemon --pipe | luce detokenize`.

`ids` is what flows between them, `tokens` makes it of text and text of it, `pipe` is the engine in their middle. Called
by cli/app and cli/daemon.
"""
