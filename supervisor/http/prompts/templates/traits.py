"""TemplateTraits: what a chat template takes of a conversation. Pure data: knows no template and no message."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

_SYSTEM_ROLES = frozenset({"system", "developer"})


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateTraits:
    """The defaults are those of a template that takes everything."""

    shows_tools: bool = True
    """Whether the prompt has the tools that a request offers."""
    parses_calls: bool = True
    """Whether there is a format for calls: without one no call can be demanded."""
    shows_calls: bool = True
    """Earlier calls, with their arguments and results."""
    takes_parallel_calls: bool = True
    """Several in one message."""
    takes_text_beside_calls: bool = True
    takes_results_alone: bool = True
    """Results that do not follow a call."""
    call_id_length: int | None = None
    """Ids of calls are to have so many letters and digits; None: any id will do."""
    leading_roles: frozenset[str] = _SYSTEM_ROLES
    """Roles of a system message at the beginning that are shown there."""
    takes_several_leading: bool = True
    roles_behind_system: frozenset[str] = _SYSTEM_ROLES
    """Roles of a system message further on that are shown in their place, in a conversation that begins with one."""
    roles_without_system: frozenset[str] = _SYSTEM_ROLES
    """The same in a conversation that does not."""
    moves_tools: bool = False
    """The tools stand before the user's latest message: what was read from the one before it on is read anew."""
    alternates: bool = False
    """Texts of the user and of the assistant take turns; calls and results do not count."""
    opens_with_user: bool = False

    @property
    def parts_text_from_calls(self) -> bool:
        """Not where that takes an empty message of the user's: Mistral's templates put the tools before the latest."""
        return self.shows_calls and not self.takes_text_beside_calls and not self.alternates

    def remedies(self) -> Iterator[str]:
        """What is done to conversations, for the log."""
        if "system" not in self.leading_roles:
            yield "system messages become the user's"
        elif not self.takes_several_leading:
            yield "system messages at the start become one"
        if "system" not in self.roles_behind_system & self.roles_without_system & self.leading_roles:
            yield "system messages further on become the user's"
        if self.alternates:
            yield "neighbours of one role are joined, or parted by an empty message"
        elif self.opens_with_user:
            yield "an empty user message goes before a conversation that does not begin with the user's"
        if self.call_id_length is not None:
            yield f"ids of calls become {self.call_id_length} letters and digits"
        if not self.shows_calls:
            yield "earlier calls are told in words"
        elif not self.takes_parallel_calls:
            yield "parallel calls become one turn each"
        if self.parts_text_from_calls:
            yield "text beside calls becomes a message of its own"
        elif self.shows_calls and not self.takes_text_beside_calls:
            yield "text beside calls is not shown"


STRICTEST = TemplateTraits(
    shows_calls=False,
    takes_parallel_calls=False,
    takes_results_alone=False,
    leading_roles=frozenset(),
    takes_several_leading=False,
    roles_behind_system=frozenset(),
    roles_without_system=frozenset(),
    alternates=True,
    opens_with_user=True,
)
"""Of a template that takes nothing but texts of the user and of the assistant, in turns."""
