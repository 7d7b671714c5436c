"""supervisor/evaluating: does a model answer rightly? What `luce eval` asks, and what its answers are worth.

`tasks` makes questions and judges answers, `suites` says how many of which, `run` asks one or two sides in turns,
`statistics` says what a share or a difference is worth, `results` makes rows of outcomes, `code_runner` runs the code
that a model has written, `transcripts` reads recorded sessions. Called by cli/evaluation. Knows no server and no
engine: a side is whoever answers a question.
"""
