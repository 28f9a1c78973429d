"""Checks that every include goes in the direction that ARCHITECTURE.md allows. A text search: includes name files
from the repository's root.

usage: layering.py ROOT
"""
import pathlib
import re
import sys

# Folder -> what its files may include of ours. The longest matching folder counts.
LAYERS = {
    "lib/base": ["lib/base"],
    "lib/ckpt": ["lib/base", "lib/ckpt"],
    "lib/comm": ["lib/base", "lib/comm"],
    "lib/train": ["lib/base", "lib/ckpt", "lib/comm", "lib/train", "kernels"],
    "kernels": ["lib/base", "kernels"],
    "formats": ["lib/base", "lib/ckpt", "formats"],
    "tools": ["lib", "formats", "kernels", "tools"],
    "tests": ["lib", "formats", "kernels", "tools", "tests"],
}

# Header of another library -> the only files that may include it.
EXTERNAL = {
    r"hdf5(_hl)?\.h|H5\w+\.h": r"formats/hdf5\w*\.cpp",
    r"CLI/.*": r"tools/.*",
    r"(torch|ATen|c10)/.*": r"(lib|tests)/train/.*|lib/comm/gloo\w*\.(h|cpp)",
    r"nccl\.h": r"lib/comm/nccl\.cpp",
    r"cuda(_runtime\w*|_fp16|_bf16)?\.h": r"kernels/cuda/.*|lib/comm/nccl\.cpp",
    r"gloo/.*": r"lib/comm/gloo_stub/.*",
    r"(gtest|gmock)/.*": r"tests/.*",
    r"benchmark/.*": r"tests/.*",
}

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)


def complaint(path, quote, header):
    """Why `path` may not include `header`; None when it may."""
    if quote == '"':
        if header.split("/")[0] not in {layer.split("/")[0] for layer in LAYERS}:
            return "does not start at the repository's root"
        layer = max((layer for layer in LAYERS if path.startswith(layer + "/")), key=len)
        if not any(header.startswith(allowed + "/") for allowed in LAYERS[layer]):
            return f"{layer} may include only {', '.join(LAYERS[layer])}"
    for headers, files in EXTERNAL.items():
        if re.fullmatch(headers, header) and not re.fullmatch(files, path):
            return f"only {files} may include it"
    return None


def main():
    root = pathlib.Path(sys.argv[1])
    complaints = checked = 0
    for layer in LAYERS:
        for path in sorted((root / layer).rglob("*")):
            if path.suffix not in (".h", ".cpp", ".cu", ".cuh"):
                continue
            checked += 1
            name = path.relative_to(root).as_posix()
            for quote, header in INCLUDE.findall(path.read_text()):
                why = complaint(name, quote, header)
                if why:
                    complaints += 1
                    print(f"{name}: includes {header}: {why}")
    print(f"{checked} files, {complaints} includes in the wrong direction")
    return 1 if complaints or not checked else 0


if __name__ == "__main__":
    sys.exit(main())
