"""The llama.cpp release that exports use: where it is fetched from and what it must hash to."""

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, StringConstraints, ValidationError

from overbrainer_airflow.errors import InvalidInputError

Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]

_ENV_PREFIX = "OVERBRAINER_LLAMA_CPP"

_PLATFORMS = {
    "Linux x86_64": "ubuntu_x64_sha256",
    "Linux aarch64": "ubuntu_arm64_sha256",
    "Linux arm64": "ubuntu_arm64_sha256",
    "Darwin arm64": "macos_arm64_sha256",
}


class LlamaCppRelease(BaseModel):
    """A llama.cpp release, pinned by digest.

    The source comes from ``<url>/archive/refs/tags/<tag>.tar.gz``, a platform's programs from
    ``<url>/releases/download/<tag>/llama-<tag>-bin-<asset>.tar.gz``; ``url`` may be a mirror or a
    ``file://`` directory of the machine. A platform whose digest is absent is not offered.
    The CUDA and ROCm digests are for tools that share the cache; an export runs on the CPU.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    tag: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    url: Annotated[str, StringConstraints(pattern=r"^(https?|file)://[^\s'\"\\]+[^\s'\"\\/]$")]
    source_sha256: Sha256
    ubuntu_x64_sha256: Sha256 | None = None
    ubuntu_arm64_sha256: Sha256 | None = None
    macos_arm64_sha256: Sha256 | None = None
    cuda: str | None = None
    ubuntu_cuda_x64_sha256: Sha256 | None = None
    ubuntu_cuda_arm64_sha256: Sha256 | None = None
    cudart_x64_sha256: Sha256 | None = None
    cudart_arm64_sha256: Sha256 | None = None
    rocm: str | None = None
    ubuntu_rocm_x64_sha256: Sha256 | None = None

    def env(self) -> dict[str, str]:
        """Return the release as ``export.sh`` reads it from its environment."""
        values = self.model_dump(exclude={"tag"}, exclude_none=True)
        named = {f"{_ENV_PREFIX}_{field.upper()}": value for field, value in values.items()}
        return {_ENV_PREFIX: self.tag} | named

    def check_platform(self, uname: str) -> None:
        """Make sure that the release has programs for a machine, by its ``uname -sm``.

        Raises:
            InvalidInputError: it has none.
        """
        field = _PLATFORMS.get(uname)
        if field is None:
            raise InvalidInputError(
                f"llama.cpp has no programs for {uname}: export on one of {', '.join(_PLATFORMS)}"
            )
        if getattr(self, field) is None:
            raise InvalidInputError(
                f"llama.cpp {self.tag} is not pinned for {uname}: add {field} to the release file"
            )


LLAMA_CPP = LlamaCppRelease(
    tag="b11320",
    url="https://github.com/ggml-org/llama.cpp",
    source_sha256="edd777f61c1d3704456f01bbb9a77b4bd71a1b39d9b8fe0109c3d65c2c4ece74",
    ubuntu_x64_sha256="ef1856938dc1434138ce53688791eb0d2d64cf46e309a0942a12bba3366c0919",
    ubuntu_arm64_sha256="88589b963d8e2ffd2d4df2f542ed7e301fb636b637c99081f5d58646aee20a9a",
    macos_arm64_sha256="f6f337fc7d2ff9260f53177cf4fe6bbf6b0f7faa75a49fb224aaf66885a5c956",
    cuda="13.4",
    ubuntu_cuda_x64_sha256="4c6b7cf40228efb96930f6694e7faae43a7e01993baba8e7894e2a3fc43e8a31",
    ubuntu_cuda_arm64_sha256="df2ea0d5c3bd5492dda70cd86f2a384709f7aa7ceec123b159e20b2844ce2f46",
    cudart_x64_sha256="249a86f9156641b98d586c6c6c649335f691d3a27f9fdaaca699af9cbfbb3ca2",
    cudart_arm64_sha256="e0895065d9244b3f8a50c2d85e196605e8a48c1f06a53f2f52db089fbd29d8bb",
    rocm="10.0",
    ubuntu_rocm_x64_sha256="d3f610c849bc8d365c31a62dba9c1a309a783202fe5d86d85f6a64b34cecb195",
)
"""The release that overbrainer 0.8.2 pins."""


def load_release(path: Path) -> LlamaCppRelease:
    """Read a release from a JSON file with the fields of `LlamaCppRelease`.

    Raises:
        InvalidInputError: the file cannot be read or is not a release; the message says where.
    """
    try:
        return LlamaCppRelease.model_validate_json(path.read_bytes())
    except OSError as error:
        raise InvalidInputError(f"llama.cpp release file {path}: {error.strerror}") from error
    except ValidationError as error:
        faults = "; ".join(
            f"{'.'.join(map(str, fault['loc'])) or 'file'}: {fault['msg']}"
            for fault in error.errors()
        )
        raise InvalidInputError(f"llama.cpp release file {path} is not usable: {faults}") from error
