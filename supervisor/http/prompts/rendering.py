"""Rendering: from an AnswerRequest's prompt to ids, constraints and boundaries, and to what parses its answer.

Knows the text layer and what templates cannot do; knows no dialect, no engine and no queue. Takes its time: call it in
a thread.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from types import MappingProxyType
from typing import Any

from luce.protocol import ConstraintArgs, GrammarTrigger, TriggerKind
from luce.supervisor.http.errors import ApiError, ErrorKind
from luce.supervisor.http.prompts.answer_request import ChatPrompt, TextPrompt
from luce.supervisor.http.prompts.answer_spellings import AnswerSpellings, SpelledConversation
from luce.supervisor.http.prompts.context_edits import AppliedEdit
from luce.supervisor.http.prompts.enforced_schemas import (
    AppliedNote,
    EnforcedSchema,
    EnforcedSchemas,
    callable_schemas,
    with_rules,
)
from luce.supervisor.http.prompts.image_places import ImagePlaces
from luce.supervisor.http.prompts.infill import Infill, NoInfillError, infill_prompt
from luce.supervisor.http.prompts.message_normalizer import UnreadableContentError, normalise_tools
from luce.supervisor.http.prompts.prompt_marks import PromptMarks
from luce.supervisor.http.prompts.reading_ranges import ReadingRanges, reading_ranges
from luce.supervisor.http.prompts.reasoning_history import ReasoningHistory
from luce.supervisor.http.prompts.templates.fitted_template import FittedChat, FittedTemplate, fitted
from luce.supervisor.http.prompts.templates.tool_history import in_call_order
from luce.supervisor.http.prompts.token_replay_cache import SplicedPrompt, TokenReplayCache, Turn
from luce.supervisor.text import MessageMark, RenderedChat, TextModel, schema_to_grammar
from luce.supervisor.text.image_markers import images_in

logger = logging.getLogger("luce.http.answering")

_WORDS_BEFORE_CALL = re.compile(r"until-\d+\??\s+(?=(?:space\s+)?[\w-]*tool-calls?(?:-root)?(?![\w-]))")
"""Where a call is required, llama.cpp's grammars let the model write as much as it likes before it. Both APIs mean more
by it: the call itself, after no more than the reasoning."""

_CALLS_WITHOUT_END = re.compile(r"^tool-calls ::= \(tool-call space\)\+$", re.MULTILINE)
"""Of some formats, also where one call is all that is wanted: the model would go on writing what nobody gets to see,
and the text in memory would be another one than the next prompt's."""

_TRIGGER_KINDS = {
    "word": TriggerKind.WORD,
    "pattern": TriggerKind.PATTERN,
    "full": TriggerKind.PATTERN_FULL,
    "token": TriggerKind.TOKEN,
}


@dataclass(frozen=True, slots=True)
class _Held:
    """What an answer is held to: the tools that it may call, and the schema of the whole answer."""

    tools: Sequence[EnforcedSchema]
    schema: EnforcedSchema | None

    def schemas(self, prompt: ChatPrompt) -> Sequence[EnforcedSchema]:
        return [*callable_schemas(prompt, self.tools), *(() if self.schema is None else (self.schema,))]

    def shown_tools(self, prompt: ChatPrompt) -> list[dict[str, Any]] | None:
        """As the template sees them, with what calls are held to."""
        shown = normalise_tools(prompt.tools)
        for tool, schema in zip(shown, self.tools, strict=True):
            tool["function"]["enforced"] = schema.compiled.shape
        return shown or None


@dataclass(frozen=True)
class Rendered:
    ids: Sequence[int]
    boundaries: tuple[int, ...] = ()
    marks: tuple[int, ...] = ()
    """Where other prompts may part from this one within its messages."""
    user_end: int | None = None
    """Where the user's last message ends and the assistant's begin that answer it."""
    turns: tuple[tuple[MessageMark, int | None], ...] = ()
    """The template's messages, and where they begin in the ids; None: within an answer that was put in."""
    constraint: ConstraintArgs = field(default_factory=ConstraintArgs)
    schema_notes: tuple[AppliedNote, ...] = ()
    """What of its schemas does not hold the answer."""
    chat: RenderedChat | None = None
    """None: a text, whose answer has no format."""
    turn: Turn | None = None
    """Under which the answer is to be known."""
    place: bytes | None = None
    """The same for the answer as a message."""
    continues: bool = False
    """The answer goes on from the last message."""
    n_restored: int = 0
    """Earlier answers that the client spelled otherwise, and that are in the prompt as the model wrote them."""
    is_live_summary: bool = False
    """Of the conversation that the request summarises, in place of the request's own."""
    edits: tuple[AppliedEdit, ...] = ()
    """What was cleared of its messages."""
    images: tuple[tuple[int, str], ...] = ()
    """Where the ids of each begin, and its name."""
    max_calls: int | None = None
    """Calls that the answer may have; None: any number."""
    in_parts: bool = False
    """Perhaps only parts of it are read."""
    reading: ReadingRanges = field(default_factory=ReadingRanges)
    """What is read in any case then."""

    def close(self) -> None:
        if self.chat is not None:
            self.chat.close()


class Renderer:
    """For one model. Any thread may use it."""

    def __init__(
        self, model: TextModel, known: TokenReplayCache | None = None, spellings: AnswerSpellings | None = None
    ) -> None:
        self._model = model
        self._known = TokenReplayCache(model, 0) if known is None else known
        self._spellings = AnswerSpellings(0) if spellings is None else spellings
        self._template = FittedTemplate(model)
        self._marks = PromptMarks(model.prompt_piece)
        self._history = ReasoningHistory(model)
        self._schemas = EnforcedSchemas()
        self._said: set[str] = set()

    def prompt_text(self, prompt: ChatPrompt, owner: str, client: str) -> str:
        """The text that a conversation is made into, for those who want to see it. Raises ApiError, or TextError."""
        rendered = self.render(prompt, owner, client)
        try:
            assert rendered.chat is not None
            return rendered.chat.prompt
        finally:
            rendered.close()

    def render(
        self,
        prompt: ChatPrompt | TextPrompt,
        owner: str = "",
        client: str = "",
        images: Mapping[str, Sequence[int]] = MappingProxyType({}),
        parts_from: int | None = None,
    ) -> Rendered:
        """`owner`: in whose name what is made of the prompt is kept: answers that are put in where they spell what is
        there, and texts that were read and tokenised before; `client`: whose answers may be put in where they say it,
        if there is no owner; `images`: the ids of those in its messages, by name; `parts_from`: from so many ids on
        only parts of it may be read, unless it has images. Raises ApiError, or TextError."""
        if isinstance(prompt, TextPrompt):
            text = self._text(prompt)
            return replace(text, in_parts=parts_from is not None and len(text.ids) >= parts_from)
        if prompt.may_call:
            self._check_tools(prompt)
        spoken = self._spoken(prompt, owner or client)
        is_parallel = self._is_parallel(prompt)
        max_calls = _max_calls(prompt, is_parallel=is_parallel)
        held = _Held(self._schemas.of_tools(prompt.tools), self._schema(prompt))
        shown = self._shown(prompt, spoken, owner, held, has_images=bool(images), is_parallel=is_parallel)
        chat, answers = shown.chat, spoken.answers_in(shown.messages)
        spliced = self._known.splice(chat, owner, [answer for answer, _ in answers])
        names = images_in(chat.prompt) if images else []
        placed = ImagePlaces(spliced.ids, self._model.n_vocab, names, images)
        differing = {number for number, (_, differs) in enumerate(answers) if differs}
        user_end = _user_end(shown, spoken.messages, spliced.places)
        record = spoken.conversation
        marks, record.head = self._marks.find(chat, prompt.messages, prompt.tools, record.head)
        found = ((spliced.places[mark.message], mark.offset) for mark in marks)
        in_parts = parts_from is not None and len(spliced.ids) >= parts_from and not names
        constraint, notes = self._constraint(prompt, chat, held, max_calls)
        return Rendered(
            ids=placed.ids,
            boundaries=spliced.boundaries if placed.is_empty else tuple(map(placed.moved, spliced.boundaries)),
            marks=tuple(placed.moved(place + offset) for place, offset in found if place is not None),
            user_end=None if user_end is None else placed.moved(user_end),
            turns=tuple(zip(chat.marks, _moved(spliced.places, placed), strict=True)),
            images=tuple(placed.images),
            in_parts=in_parts,
            reading=self._reading(prompt, chat, spliced, spoken) if in_parts else ReadingRanges(),
            constraint=constraint,
            schema_notes=notes,
            max_calls=max_calls,
            chat=chat,
            turn=spliced.turn,
            place=spoken.place,
            continues=prompt.continues_last,
            n_restored=len(spliced.respelled | (spliced.replaced & differing)),
        )

    def _reading(
        self, prompt: ChatPrompt, chat: RenderedChat, spliced: SplicedPrompt, spoken: SpelledConversation
    ) -> ReadingRanges:
        return reading_ranges(
            chat,
            spliced.places,
            len(spliced.ids),
            spoken.messages,
            self._model.prompt_piece,
            opens_answer=prompt.opens_answer and not prompt.continues_last,
        )

    def _text(self, prompt: TextPrompt) -> Rendered:
        if prompt.infill is not None:
            return self._infill(prompt, prompt.infill)
        if isinstance(prompt.content, str):
            # Who writes all of the prompt writes its special tokens too.
            ids = tuple(self._model.tokenize(prompt.content, add_special=True, parse_special=True))
            bos = self._model.info.bos
            return self._constrained(prompt, Rendered(ids if ids or bos is None else (bos,)))
        ids = tuple(prompt.content)
        self._check_ids(ids)
        return self._constrained(prompt, Rendered(ids))

    def _constrained(self, prompt: TextPrompt, rendered: Rendered) -> Rendered:
        schema = self._schema(prompt)
        if schema is None:
            return replace(rendered, constraint=ConstraintArgs(grammar=prompt.grammar))
        constraint = ConstraintArgs(grammar=schema.compiled.grammar)
        return replace(rendered, constraint=constraint, schema_notes=self._schemas.tell([schema]))

    def _infill(self, prompt: TextPrompt, infill: Infill) -> Rendered:
        if not isinstance(prompt.content, str):
            self._check_ids(prompt.content)
        try:
            ids, ends = infill_prompt(self._model, prompt.content, infill)
        except NoInfillError as error:
            text = f"this model has no way to fill in what stands between two texts ({error}): leave suffix out"
            raise ApiError(ErrorKind.INVALID, "no_suffix", text, param="suffix") from error
        return self._constrained(prompt, Rendered(tuple(ids), boundaries=tuple(ends)))

    def _check_ids(self, ids: Sequence[int]) -> None:
        if any(not 0 <= token < self._model.n_vocab for token in ids):
            text = f"a prompt's token ids are whole numbers from 0 to {self._model.n_vocab - 1}"
            raise ApiError(ErrorKind.INVALID, "token_out_of_range", text, param="prompt")

    def _spoken(self, prompt: ChatPrompt, client: str) -> SpelledConversation:
        try:
            messages = in_call_order(prompt.messages)
            spoken = self._spellings.read(messages, client, keeps_last=prompt.continues_last, tools=prompt.tools)
        except UnreadableContentError as error:
            raise ApiError(ErrorKind.INVALID, "unsupported_content", str(error), param="messages") from error
        if prompt.continues_last and not spoken.is_last_ours and _end_in_two_answers(messages):
            text = "Only one assistant message can be last, to be gone on from, unless this server gave the last one."
            raise ApiError(ErrorKind.INVALID, "invalid_value", text, param=f"messages[{len(messages) - 1}]")
        return spoken

    def _schema(self, prompt: ChatPrompt | TextPrompt) -> EnforcedSchema | None:
        if prompt.json_schema is None:
            return None
        return self._schemas.of_answer(prompt.json_schema, is_strict=prompt.json_schema_is_strict)

    def _is_parallel(self, prompt: ChatPrompt) -> bool:
        """Whether an answer may have several calls; where the client does not say, as the template shows them."""
        if prompt.parallel_tool_calls is not None:
            return prompt.parallel_tool_calls
        return not prompt.tools or self._template.traits(with_tools=True).takes_parallel_calls

    def _check_tools(self, prompt: ChatPrompt) -> None:
        """Raises ApiError where a call is demanded that cannot be."""
        traits = self._template.traits(with_tools=True)
        if prompt.tool_choice != "auto" and not traits.parses_calls:
            text = (
                "No call can be demanded: the model's chat template has no format for tool calls. Leave tool_choice"
                " out, or serve the model with a template that has one (--chat-template)."
            )
            raise ApiError(ErrorKind.INVALID, "tools_unsupported", text, param="tool_choice")
        if not traits.shows_tools:
            text = "the chat template does not show the tools that requests offer: the model knows none of them"
            self._say_once(text, logging.WARNING)
        if not traits.parses_calls:
            self._say_once("the chat template has no format for tool calls: calls come as text", logging.WARNING)

    def _shown(
        self,
        prompt: ChatPrompt,
        spoken: SpelledConversation,
        owner: str,
        held: _Held,
        *,
        has_images: bool,
        is_parallel: bool,
    ) -> FittedChat:
        choice: str | Mapping[str, Any] = prompt.tool_choice
        if prompt.tool_choice.startswith("function:"):
            name = prompt.tool_choice.removeprefix("function:")
            choice = {"type": "function", "function": {"name": name}}
        return self._template.render(
            spoken.messages,
            tools=held.shown_tools(prompt),
            tool_choice=choice,
            parallel_tool_calls=is_parallel,
            json_schema=None if held.schema is None else held.schema.compiled.shape,
            grammar=None if prompt.may_call else prompt.grammar,
            enable_thinking=prompt.thinking is not False,
            chat_template_kwargs=self._template_arguments(prompt) or None,
            continue_final_message=prompt.continues_last,
            add_generation_prompt=None if prompt.opens_answer else False,
            has_images=has_images,
            cache_salt=owner,
        )

    def _constraint(
        self, prompt: ChatPrompt, chat: RenderedChat, held: _Held, max_calls: int | None
    ) -> tuple[ConstraintArgs, tuple[AppliedNote, ...]]:
        """And what of the schemas it does not hold the answer to."""
        budget = self._thinking_budget(prompt, chat)
        grammar, is_lazy = self._grammar(prompt, chat, max_calls)
        notes: tuple[AppliedNote, ...] = ()
        if grammar and prompt.grammar is None:
            schemas = held.schemas(prompt)
            grammar, lost = with_rules(grammar, schemas)
            notes = self._schemas.tell(schemas, lost)
        # What stands before the answer, for those who have to know: a grammar of the template's, and the budget.
        before = "" if _is_of_the_answer_only(prompt, chat, held.schema) else chat.generation_prompt
        if budget is not None and (begun := _begun_reasoning(chat)):
            if not grammar or is_lazy:
                before = chat.thinking.start
            elif before:
                budget += len(self._model.tokenize(begun, parse_special=True))
        constraint = ConstraintArgs(
            grammar=grammar or None,
            grammar_lazy=is_lazy,
            triggers=tuple(
                GrammarTrigger(_TRIGGER_KINDS[trigger.kind], token=trigger.token)
                if trigger.token is not None
                else GrammarTrigger(_TRIGGER_KINDS[trigger.kind], trigger.value)
                for trigger in chat.triggers
            )
            if is_lazy
            else (),
            preserved=chat.preserved,
            generation_prompt=before or None,
            think_budget=budget,
            think_start=chat.thinking.start_tokens if budget is not None else (),
            think_end=_ends(chat.thinking.ends_tokens) if budget is not None else (),
        )
        return constraint, notes

    def _grammar(self, prompt: ChatPrompt, chat: RenderedChat, max_calls: int | None) -> tuple[str, bool]:
        """And whether it applies only once a call begins. Beside tools the request's own is that of their calls too."""
        if prompt.grammar is not None and prompt.may_call:
            return prompt.grammar, False
        grammar = chat.grammar
        if prompt.tool_choice not in {"auto", "none"} or prompt.json_schema is not None:
            grammar = call_at_once(grammar, chat.thinking.start)
        if max_calls == 1:
            grammar = _CALLS_WITHOUT_END.sub("tool-calls ::= tool-call space", grammar)
        return grammar, chat.grammar_lazy

    def _thinking_budget(self, prompt: ChatPrompt, chat: RenderedChat) -> int | None:
        if prompt.thinking_budget is None or prompt.thinking is False:
            return None
        thinking = chat.thinking
        if not thinking.start_tokens or not _ends(thinking.ends_tokens):
            self._say_once("thinking_budget is not used: the model's template marks no reasoning")
            return None
        return prompt.thinking_budget

    def _template_arguments(self, prompt: ChatPrompt) -> dict[str, Any]:
        """Templates take no notice of those that they do not know."""
        arguments: dict[str, Any] = {}
        if prompt.thinking is not None:
            arguments["enable_thinking"] = arguments["thinking"] = prompt.thinking
        if prompt.effort is not None:
            arguments["reasoning_effort"] = prompt.effort
        if prompt.preserve_thinking == "on" and not self._history.is_optional:
            self._say_once("preserve_thinking is not used: the model's template has no such argument")
        return {**arguments, **self._history.arguments(prompt), **prompt.template_arguments}

    def _say_once(self, text: str, level: int = logging.INFO) -> None:
        if text not in self._said:
            self._said.add(text)
            logger.log(level, "%s", text)


def _end_in_two_answers(messages: Sequence[Mapping[str, Any]]) -> bool:
    """As llama-server has it: which of them is gone on from? Behind a call there is no doubt."""
    return len(messages) > 1 and messages[-2]["role"] == "assistant" and not messages[-2].get("tool_calls")


def _max_calls(prompt: ChatPrompt, *, is_parallel: bool) -> int | None:
    """Calls that the answer may have; None: any number."""
    if not prompt.tools:
        return None
    return prompt.max_tool_calls if is_parallel and not prompt.tool_choice.startswith("function:") else 1


def _moved(places: Sequence[int | None], images: ImagePlaces) -> Sequence[int | None]:
    return places if images.is_empty else [None if place is None else images.moved(place) for place in places]


def _user_end(
    fitted_chat: FittedChat, messages: Sequence[Mapping[str, Any]], places: Sequence[int | None]
) -> int | None:
    """Found by counting the assistant's messages: templates may make the user's of results of tools."""
    chat = fitted_chat.chat
    roles = [message.get("role") for message in messages]
    if "user" not in roles:
        return None
    before = fitted(messages[: len(roles) - roles[::-1].index("user")], fitted_chat.traits)
    n_before = sum(message.get("role") == "assistant" for message in before)
    begun = (place for mark, place in zip(chat.marks, places, strict=True) if mark.role == "assistant")
    return next(islice(begun, n_before, None), None)


def _begun_reasoning(chat: RenderedChat) -> str:
    """What follows the prefix of reasoning in the text that the template puts before the answer; empty if it begins
    none. The engine would take it off the budget, and takes it for the forced end of a budget of 0."""
    thinking = chat.thinking
    _, start, rest = chat.generation_prompt.rpartition(thinking.start)
    return rest if start and not any(end in rest for end in thinking.ends if end) else ""


def _is_of_the_answer_only(prompt: ChatPrompt, chat: RenderedChat, schema: EnforcedSchema | None) -> bool:
    """Grammars that llama.cpp makes for a template begin with what the template puts before the answer; the request's
    own, and schemas where it makes nothing of them for this template, do not."""
    if prompt.grammar is not None:
        return prompt.may_call or chat.grammar == prompt.grammar
    if schema is None or not chat.grammar:
        return False
    return chat.grammar == schema_to_grammar(schema.compiled.shape)


def _ends(ends: Sequence[tuple[int, ...]]) -> tuple[tuple[int, ...], ...]:
    return tuple(end for end in ends if end)


def call_at_once(grammar: str, thinking_start: str) -> str:
    """`grammar` without the free text before its tool call, where that is found; reasoning stays."""
    lines = grammar.split("\n")
    for number, line in enumerate(lines):
        if line.startswith(("root ::=", "calls-root ::=")):  # native/llama/text/grammar_choice.h has the second
            lines[number] = _WORDS_BEFORE_CALL.sub(lambda match: _left_of(match, thinking_start), line)
    return "\n".join(lines)


def _left_of(match: re.Match[str], thinking_start: str) -> str:
    before = match.string[: match.start()].rstrip()
    is_reasoning = thinking_start != "" and before.endswith(json.dumps(thinking_start, ensure_ascii=False))
    return match[0] if is_reasoning else ""
