"""The MiniLM sentence encoder as an ONNX graph, written out layer by layer from its weights.

all-MiniLM-L6-v2 (https://huggingface.co/sentence-transformers/all-MiniLM-L6-v2) is a BERT encoder
whose token vectors are averaged and brought to length 1. Converting it the usual way takes torch;
its six layers are few enough to write down.

    ids, mask (int64, texts x tokens) -> embedding (float32, texts x 384)
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import safetensors.numpy
from onnx import TensorProto, helper, numpy_helper

_OPSET = 20  # the first with Gelu
_IR_VERSION = 9
_MASKED = -1e9  # added to the scores of padding: nothing is left of it after the softmax

Array = npt.NDArray[Any]


def build(model: Path, target: Path) -> None:
    """Write the model in folder *model* (config.json, model.safetensors) to *target*, 90 MB."""
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    encoder = _Encoder(config, safetensors.numpy.load_file(model / "model.safetensors"))
    encoder.write()
    int64, float32, size = TensorProto.INT64, TensorProto.FLOAT, config["hidden_size"]
    graph = helper.make_graph(
        encoder.nodes,
        "minilm",
        [helper.make_tensor_value_info(n, int64, ["texts", "tokens"]) for n in ("ids", "mask")],
        [helper.make_tensor_value_info("embedding", float32, ["texts", size])],
        encoder.constants,
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)])
    made.ir_version = _IR_VERSION
    onnx.checker.check_model(made)
    target.write_bytes(made.SerializeToString())


class _Encoder:
    """Collects the nodes; each method adds some and returns the name of what they compute."""

    def __init__(self, config: dict[str, Any], weights: dict[str, Array]) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self._weights = weights
        self._layers = config["num_hidden_layers"]
        self._heads = config["num_attention_heads"]
        self._size = config["hidden_size"]
        self._epsilon = config["layer_norm_eps"]

    def write(self) -> None:
        mask = self._node("Cast", "mask", to=TensorProto.FLOAT)
        bias = self._attention_bias(mask)
        x = self._embeddings()
        for layer in range(self._layers):
            x = self._layer(f"encoder.layer.{layer}", x, bias)
        mean = self._mean(x, mask)
        self.nodes.append(helper.make_node("LpNormalization", [mean], ["embedding"], axis=-1, p=2))

    def _embeddings(self) -> str:
        words = self._node("Gather", self._weight("embeddings.word_embeddings.weight"), "ids")
        tokens = self._node("Gather", self._node("Shape", "ids"), self._constant([1]))
        positions = self._node(
            "Slice",
            self._weight("embeddings.position_embeddings.weight"),
            self._constant([0]),
            tokens,
            self._constant([0]),
        )
        # There is one text in each input, so all tokens are of type 0.
        kind = self._constant(self._weights["embeddings.token_type_embeddings.weight"][0])
        x = self._node("Add", self._node("Add", words, positions), kind)
        return self._norm("embeddings.LayerNorm", x)

    def _layer(self, name: str, x: str, bias: str) -> str:
        attended = self._linear(f"{name}.attention.output.dense", self._attention(name, x, bias))
        x = self._norm(f"{name}.attention.output.LayerNorm", self._node("Add", attended, x))
        inner = self._node("Gelu", self._linear(f"{name}.intermediate.dense", x))
        outer = self._linear(f"{name}.output.dense", inner)
        return self._norm(f"{name}.output.LayerNorm", self._node("Add", outer, x))

    def _attention(self, name: str, x: str, bias: str) -> str:
        query, key, value = (
            self._split(self._linear(f"{name}.attention.self.{part}", x), order)
            for part, order in (
                ("query", [0, 2, 1, 3]),
                ("key", [0, 2, 3, 1]),
                ("value", [0, 2, 1, 3]),
            )
        )
        scale = self._constant(np.float32(1 / math.sqrt(self._size // self._heads)))
        scores = self._node("Mul", self._node("MatMul", query, key), scale)
        shares = self._node("Softmax", self._node("Add", scores, bias), axis=-1)
        joined = self._node("Transpose", self._node("MatMul", shares, value), perm=[0, 2, 1, 3])
        return self._node("Reshape", joined, self._constant([0, 0, self._size]))

    def _split(self, x: str, order: list[int]) -> str:
        """Part the last axis by heads, then order the axes texts, tokens, heads, size anew."""
        heads = self._constant([0, 0, self._heads, self._size // self._heads])
        return self._node("Transpose", self._node("Reshape", x, heads), perm=order)

    def _attention_bias(self, mask: str) -> str:
        """Return texts x 1 x 1 x tokens: 0 for a token, a very negative number for padding."""
        wide = self._node("Unsqueeze", mask, self._constant([1, 2]))
        padding = self._node("Sub", self._constant(np.float32(1)), wide)
        return self._node("Mul", padding, self._constant(np.float32(_MASKED)))

    def _mean(self, x: str, mask: str) -> str:
        axis = self._constant([1])
        weights = self._node("Unsqueeze", mask, self._constant([2]))
        total = self._node("ReduceSum", self._node("Mul", x, weights), axis, keepdims=0)
        return self._node("Div", total, self._node("ReduceSum", weights, axis, keepdims=0))

    def _linear(self, name: str, x: str) -> str:
        weight = self._constant(self._weights[f"{name}.weight"].T)
        return self._node("Add", self._node("MatMul", x, weight), self._weight(f"{name}.bias"))

    def _norm(self, name: str, x: str) -> str:
        scale, shift = self._weight(f"{name}.weight"), self._weight(f"{name}.bias")
        return self._node("LayerNormalization", x, scale, shift, axis=-1, epsilon=self._epsilon)

    def _weight(self, name: str) -> str:
        return self._constant(self._weights[name])

    def _constant(self, value: Array | np.float32 | list[int]) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(value), name))
        return name

    def _node(self, operation: str, *inputs: str, **attributes: Any) -> str:
        output = f"n{len(self.nodes)}"
        self.nodes.append(helper.make_node(operation, inputs, [output], **attributes))
        return output
