"""What a model is served with, for the Modelfile and for the API alike."""

import logging
import re
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PositiveInt,
    StrictBool,
    StrictFloat,
    StrictInt,
    StringConstraints,
    ValidationError,
)

from overbrainer_airflow.errors import InvalidInputError
from overbrainer_airflow.export.gguf_header import GGUFHeader

log = logging.getLogger(__name__)

_Number = StrictInt | StrictFloat
_Stop = Annotated[str, StringConstraints(min_length=1, max_length=1000)]

# What stands in the chat templates that Ollama has a template of its own for, with its stops
# (template/index.json of Ollama 0.33).
_KNOWN_TEMPLATES = re.compile(
    r"<\|im_start\|>|<\|start_header_id\|>|<start_of_turn>|\[INST\]|<\|user\|>|<\|start_of_role\|>"
    r"|<\|START_OF_TURN_TOKEN\|>|GPT4 Correct User|### Instruction:|@@ Instruction"
    "|<\uff5cUser\uff5c>"
)


class Parameters(BaseModel):
    """The parameters that Ollama knows (``api.Options``), each with the type that it needs.

    Ollama itself stores whatever it is given and fails when the model is loaded.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    num_ctx: PositiveInt | None = None
    num_predict: int | None = None
    num_keep: int | None = None
    num_batch: PositiveInt | None = None
    num_gpu: int | None = None
    main_gpu: int | None = None
    num_thread: int | None = None
    use_mmap: StrictBool | None = None
    seed: int | None = None
    temperature: Annotated[_Number, Field(ge=0)] | None = None
    top_k: int | None = None
    top_p: Annotated[_Number, Field(ge=0, le=1)] | None = None
    min_p: Annotated[_Number, Field(ge=0, le=1)] | None = None
    typical_p: Annotated[_Number, Field(ge=0, le=1)] | None = None
    repeat_last_n: int | None = None
    repeat_penalty: _Number | None = None
    presence_penalty: _Number | None = None
    frequency_penalty: _Number | None = None
    stop: Annotated[list[_Stop], Field(min_length=1)] | None = None


class ModelSettings(BaseModel):
    """What a model is served with.

    Attributes:
        system: the system message.
        template: the prompt's template, in Go's syntax; the GGUF's own when None.
        parameters: see `Parameters`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    system: Annotated[str, StringConstraints(min_length=1)] | None = None
    template: Annotated[str, StringConstraints(min_length=1)] | None = None
    parameters: Parameters = Parameters()

    def given(self) -> dict[str, Any]:
        """Return the parameters that have a value."""
        return self.parameters.model_dump(exclude_none=True)


def settings_of(
    *, system: str | None, template: str | None, parameters: Mapping[str, Any] | None
) -> ModelSettings:
    """Check what a person asks for.

    Raises:
        InvalidInputError: Ollama does not know a parameter, it has another type, or a text cannot
            stand in a Modelfile.
    """
    try:
        settings = ModelSettings.model_validate(
            {"system": system or None, "template": template or None, "parameters": parameters or {}}
        )
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        known = ", ".join(Parameters.model_fields)
        hint = f" (known are {known})" if first["type"] == "extra_forbidden" else ""
        raise InvalidInputError(f"Ollama: {where}: {first['msg']}{hint}") from error
    for name, text in (("system", settings.system), ("template", settings.template)):
        if text is not None and ('"""' in text or "\0" in text or "\r" in text):
            raise InvalidInputError(
                f'Ollama: {name} cannot stand in a Modelfile: it has """, NUL or a carriage return'
            )
    for stop in settings.parameters.stop or []:
        if any(character in stop for character in '"\n\r\0'):
            raise InvalidInputError(
                f"Ollama: stop {stop!r} cannot stand in a Modelfile: it has a quote or a line break"
            )
    return settings


def fitted(settings: ModelSettings, header: GGUFHeader, trained: int | None) -> ModelSettings:
    """Return the settings for one GGUF: the context that it was trained with, and its ends.

    Args:
        settings: what is asked for.
        header: the GGUF.
        trained: the length of its training sequences, in tokens, if known. Without a number
            Ollama chooses a context by the memory that it finds.
    """
    chosen: dict[str, Any] = {}
    wanted = settings.parameters.num_ctx or trained
    longest = header.context_length
    if wanted is not None and longest is not None and wanted > longest:
        log.warning(
            "A context of %d tokens is more than the %d that the model was made for, takes %d",
            wanted,
            longest,
            longest,
        )
        wanted = longest
    if wanted is not None:
        chosen["num_ctx"] = wanted
    if settings.parameters.stop is None and settings.template is None:
        stops = _stops(header)
        if stops:
            chosen["stop"] = stops
    parameters = Parameters.model_validate(settings.given() | chosen)
    return settings.model_copy(update={"parameters": parameters})


def _stops(header: GGUFHeader) -> list[str]:
    """Return the tokens that end an answer, unless Ollama has a template that brings its own."""
    if header.chat_template is None or _KNOWN_TEMPLATES.search(header.chat_template):
        return []
    return [token for token in header.end_tokens if not any(c in token for c in '"\n\r\0')]


def modelfile(file_name: str, settings: ModelSettings) -> str:
    """Return the Modelfile of a GGUF beside it, the very settings that the API is given."""
    lines = [f"FROM ./{file_name}"]
    if settings.template is not None:
        lines.append(f'TEMPLATE """{settings.template}"""')
    if settings.system is not None:
        lines.append(f'SYSTEM """{settings.system}"""')
    for name, value in settings.given().items():
        values = value if isinstance(value, list) else [value]
        lines.extend(f"PARAMETER {name} {_word(one)}" for one in values)
    return "\n".join([*lines, ""])


def _word(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(value)
