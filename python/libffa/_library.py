# SPDX-License-Identifier: Apache-2.0
"""The loaded library, calls that raise, and where the package's files are."""
from __future__ import annotations

import ctypes as C
import os
import sys
import sysconfig
import threading

from . import _abi
from .errors import from_error

FOLDER = os.path.dirname(os.path.abspath(__file__))


def _candidates():
    """Where libffa may be: named by LIBFFA_LIBRARY, in the wheel, or where the loader looks."""
    named = os.environ.get("LIBFFA_LIBRARY")
    if named:
        return [named]
    soname = "libffa.so." + (f"0.{_abi.FFA_VERSION_MINOR}" if _abi.FFA_VERSION_MAJOR == 0 else str(_abi.FFA_VERSION_MAJOR))
    return [os.path.join(FOLDER, "lib", soname), soname]


def _load():
    tried = []
    for path in _candidates():
        try:
            library = C.CDLL(path)
        except OSError as error:
            tried.append(str(error))
            continue
        _abi.declare(library)
        return library
    raise ImportError("libffa.so was not found: " + "; ".join(tried))


lib = _load()


def call(name: str, *arguments) -> None:
    """Call a function that can fail, without its last argument; its sentence becomes an exception."""
    error = _abi.ffa_error()
    if getattr(lib, name)(*arguments, C.byref(error)):
        raise from_error(error)


def call_stoppable(stop: C.c_int, value: int, name: str, *arguments) -> None:
    """call() for what may take long and looks at `stop`. It runs in a thread, because Python sees Ctrl-C only between its
    own instructions; what is raised meanwhile sets `stop` to `value`, and goes on when the call has returned."""
    errors = []

    def work():
        error = _abi.ffa_error()
        if getattr(lib, name)(*arguments, C.byref(error)):
            errors.append(from_error(error))

    thread = threading.Thread(target=work, name=name)
    thread.start()
    try:
        while thread.is_alive():
            thread.join(0.1)
    except BaseException:
        stop.value = value
        thread.join()
        raise
    if errors:
        raise errors[0]


def made(name: str, *arguments) -> C.c_void_p:
    """Call a function whose first argument receives an object, and return that."""
    out = C.c_void_p()
    call(name, C.byref(out), *arguments)
    return out


OUT = object()  # where the address of a text goes, among the arguments of text()


def text(name: str, *arguments) -> str:
    """Call a function that makes a text, which is the caller's to free; OUT stands where the address goes."""
    out = C.c_void_p()
    call(name, *(C.byref(out) if argument is OUT else argument for argument in arguments))
    try:
        return C.string_at(out).decode("utf-8")
    finally:
        lib.ffa_free(out)


def struct(cls, **fields):
    """A struct with its defaults, as the library has them, and the fields given."""
    value = cls()
    getattr(lib, cls.__name__ + "_init")(C.byref(value), C.sizeof(cls))
    for name, field in fields.items():
        setattr(value, name, field)
    return value


def version() -> str:
    """The library's version, such as "0.1.0"."""
    return lib.ffa_version().decode()


def library_path() -> str:
    """The file that libffa was loaded from."""
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        for line in maps:
            path = line.rstrip("\n").partition("/")
            if os.path.basename(path[2]).startswith("libffa.so"):
                return "/" + path[2]
    return str(lib._name)


def include_dir() -> str:
    """The folder of the C headers: `cc -I$(python -c 'import libffa; print(libffa.include_dir())')`."""
    folder = os.path.join(FOLDER, "include")  # of a wheel
    return folder if os.path.isdir(folder) else os.path.join(sys.base_prefix, "include")


# ---- NVRTC and the CUDA runtime of NVIDIA's wheels ----

def _site_packages():
    import site

    folders = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), os.path.dirname(FOLDER)}
    folders.update(site.getsitepackages() if hasattr(site, "getsitepackages") else [])
    return sorted(filter(None, folders))


def wheel_folders() -> list[str]:
    """Folders with CUDA libraries of NVIDIA's wheels beside this package, those of CUDA 13 first."""
    names = ("cu13/lib", "cuda_nvrtc/lib", "cuda_runtime/lib")
    found = [os.path.join(root, "nvidia", name) for name in names for root in _site_packages()]
    return [folder for folder in found if os.path.isdir(folder)]


def _new_enough(path, stem):
    """Whether a CUDA library is 12.8 or newer. It stays loaded, as the library would have it."""
    try:
        library = C.CDLL(path)
        if stem == "libnvrtc":
            major, minor = C.c_int(), C.c_int()
            library.nvrtcVersion(C.byref(major), C.byref(minor))
            return (major.value, minor.value) >= (12, 8)
        number = C.c_int()
        library.cudaRuntimeGetVersion(C.byref(number))
        return number.value >= 12080
    except (OSError, AttributeError):
        return False


def wheel_library(stem: str) -> bytes | None:
    """The path of "libnvrtc" or "libcudart" in NVIDIA's wheels, where the loader does not find one by itself.

    NULL for the library, None here: it searches by its own list, which begins with what the process has loaded
    (PyTorch's) and ends with the toolkit's.
    """
    for number in ("13", "12"):
        try:
            C.CDLL(f"{stem}.so.{number}", mode=os.RTLD_NOLOAD | os.RTLD_NOW)
            return None
        except OSError:
            pass
    for folder in wheel_folders():
        for number in ("13", "12"):
            path = os.path.join(folder, f"{stem}.so.{number}")
            if os.path.exists(path) and _new_enough(path, stem):
                return os.fsencode(path)
    return None
