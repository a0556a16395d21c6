from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from agentq.inference.server.gguf import requantise

F32, Q4_1, Q8_0, Q6_K = 0, 3, 8, 14


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 32)


def gguf(*tensors: tuple[bytes, int, int, bytes]) -> bytes:
    """Return a file with a text, a number and a list of texts as pairs, and *tensors*."""
    pairs = text(b"name") + struct.pack("<I", 8) + text(b"tiny")
    pairs += text(b"layers") + struct.pack("<II", 4, 2)
    pairs += text(b"words") + struct.pack("<IIQ", 9, 8, 2) + text(b"a") + text(b"bc")
    infos, data = b"", b""
    for name, items, kind, content in tensors:
        infos += text(name) + struct.pack("<IQIQ", 1, items, kind, len(data))
        data += padded(content)
    return padded(b"GGUF" + struct.pack("<IQQ", 3, len(tensors), 3) + pairs + infos) + data


def test_four_bit_blocks_become_eight_bit_blocks_of_the_same_numbers(tmp_path: Path) -> None:
    nibbles = np.arange(32, dtype=np.uint8) % 16
    scale, minimum = np.float16(0.25), np.float16(-1.5)
    packed = nibbles[:16] | (nibbles[16:] << 4)
    block = scale.tobytes() + minimum.tobytes() + packed.tobytes()
    norm = np.arange(4, dtype=np.float32).tobytes()
    source, target = tmp_path / "q4.gguf", tmp_path / "q8.gguf"
    source.write_bytes(gguf((b"weights", 64, Q4_1, block * 2), (b"norm", 4, F32, norm)))

    requantise(source, target)

    values = nibbles * np.float32(scale) + np.float32(minimum)
    step = np.float16(np.abs(values).max() / 127)
    found = target.read_bytes()
    begin = len(found) - len(padded(bytes(2 * 34))) - len(padded(norm))
    blocks = np.frombuffer(found[begin : begin + 68], np.uint8).reshape(2, 34)
    for eight_bit in blocks:
        assert eight_bit[:2].tobytes() == step.tobytes()
        steps = eight_bit[2:].view(np.int8).astype(np.float32)
        assert np.abs(steps * np.float32(step) - values).max() <= float(step) * 0.6
    expected = gguf((b"weights", 64, Q8_0, blocks.tobytes()), (b"norm", 4, F32, norm))
    assert found == expected


def test_a_file_that_is_no_gguf_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"PK\3\4 something else")
    with pytest.raises(ValueError, match="is not a GGUF file"):
        requantise(tmp_path / "x", tmp_path / "y")


def test_a_type_that_is_not_handled_is_named(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(gguf((b"w", 256, Q6_K, bytes(210))))
    with pytest.raises(ValueError, match=r"types \[14\]"):
        requantise(tmp_path / "x", tmp_path / "y")
