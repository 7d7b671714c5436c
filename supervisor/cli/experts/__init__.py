"""supervisor/cli/experts: `luce experts`, which learns which experts of a mixture are used, and what that is worth.

`command` is the command line, `sessions` reads agents' transcripts and `corpus_file` the texts made of them, `counting`
has an engine read and answer them, `profile_file` reads what it counted, `hit_curves` says what is found by whom;
`report` makes tables and JSON, `plot` pictures. Called by cli/app. Calls the engine's process and client, and the text
library; what an expert is and how it is counted only luced knows.
"""
