"""What chat templates cannot take, and how conversations are fitted to them.

Templates are known by what they do with probe conversations, never by name. A conversation is changed in place only, so
that its beginning is rendered the same in each turn.
"""
