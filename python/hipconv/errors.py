"""The errors between a first call and a loaded kernel: each class says what to do about it."""


class JitError(RuntimeError):
    """A kernel module could not be provided. Base of the classes below."""


class UnknownModule(JitError):
    """A module name that jit_config.json does not define."""

    def __init__(self, name: str, known: list[str]) -> None:
        super().__init__(f"unknown module '{name}'; jit_config.json defines: {', '.join(known)}")
        self._made_of = name, known

    def __reduce__(self) -> tuple:
        """To another process: pickle would make it from its message."""
        return type(self), self._made_of


class BadRegistry(JitError):
    """jit_config.json says something that the engine does not understand."""


class MissingToolchain(JitError):
    """A build is needed and a compiler, ninja or Python's headers are not there."""


class BuildError(JitError):
    """The compiler or linker refused the sources, or the library it made could not be imported."""


class BuildDisabled(JitError):
    """A build is needed and HIPCONV_JIT=0 forbids it."""


class CaptureError(JitError):
    """A module would have to be built or loaded while the current stream captures a graph, where neither is allowed."""


class CacheUnwritable(JitError):
    """A build is needed and there is no directory to keep it in."""


class CacheUntrusted(JitError):
    """HIPCONV_CACHE_DIR names a directory into which other users could have put code."""
