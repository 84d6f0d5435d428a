#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The C API as ctypes declarations, made from the public headers.

  generate_abi.py INCLUDE             print libffa/_abi.py
  generate_abi.py INCLUDE --check CC  compare sizes, offsets and constants of libffa/_abi.py with those of the compiler CC

The headers have one style, which is all that is read here: typedefs of structs, enums and functions, enums without a
name, and functions marked FFA_API. What is not understood is an error, so that nothing is left out unseen.
"""
import importlib.util
import os
import re
import subprocess
import sys
import tempfile

SCALARS = {"int": "C.c_int", "int8_t": "C.c_int8", "uint8_t": "C.c_uint8", "uint16_t": "C.c_uint16", "int32_t": "C.c_int32",
           "uint32_t": "C.c_uint32", "int64_t": "C.c_int64", "uint64_t": "C.c_uint64", "size_t": "C.c_size_t",
           "float": "C.c_float", "double": "C.c_double", "char": "C.c_char"}
HEAD = '''# SPDX-License-Identifier: Apache-2.0
# Made by python/tools/generate_abi.py from include/ffa. A test compares it with the headers: do not edit it.
"""The C API of libffa: constants, structs, callbacks, and the types of all functions (declare())."""
import ctypes as C
'''


class Api:
    """What the headers declare, in their order."""

    def __init__(self, include):
        self.constants, self.types, self.functions = {}, {}, []
        self.structs, self.callbacks = [], []
        self.include, self.seen = include, set()
        self.header("ffa.h")

    def header(self, name):
        """Read a header, after those that it includes."""
        if name in self.seen:
            return
        self.seen.add(name)
        with open(os.path.join(self.include, "ffa", name), encoding="utf-8") as file:
            text = file.read()
        for included in re.findall(r"^#include <ffa/(\w+\.h)>$", text, flags=re.M):
            self.header(included)
        self.read(text)

    def read(self, text):
        text = re.sub(r"/\*.*?\*/", " ", text, flags=re.S)
        statuses = re.findall(r"^    X\((\w+), *(\d+),", text, flags=re.M)
        self.constants.update({f"FFA_{name}": int(value) for name, value in statuses})
        for name, value in re.findall(r"^#define (FFA_(?:VERSION_\w+|CONTIGUOUS)) (\w+)$", text, flags=re.M):
            self.constants[name] = -2**63 if value == "INT64_MIN" else int(value)
        text = re.sub(r"\\\n", " ", text)
        text = re.sub(r"^#.*$", "", text, flags=re.M)
        text = re.sub(r'extern "C" \{', "", text).replace("unsigned char", "uint8_t")
        for part in self.declarations(text):
            self.declaration(part)

    @staticmethod
    def declarations(text):
        depth, begin = 0, 0
        for i, c in enumerate(text):
            depth += (c == "{") - (c == "}")
            if c == ";" and depth == 0 or depth < 0:
                part = " ".join(text[begin:i].split())
                begin, depth = i + 1, max(depth, 0)
                if part:
                    yield part

    def declaration(self, part):
        if match := re.fullmatch(r"typedef struct (\w+) \{(.*)\} \1", part):
            self.struct(match[1], match[2])
        elif match := re.fullmatch(r"typedef struct \w+ (\*?)(\w+)", part):
            self.types[match[2]] = "C.c_void_p" if match[1] else "opaque"
        elif match := re.fullmatch(r"(?:typedef )?enum (?:\w+ )?\{(.*)\}(?: (\w+))?", part):
            if match[2]:
                self.types[match[2]] = "C.c_int"
            if "(X)" not in match[1]:  # ffa_status: read above
                self.enum(match[1])
        elif match := re.fullmatch(r"typedef (.*?)\(\*(\w+)\)\((.*)\)", part):
            self.types[match[2]] = match[2]
            self.callbacks.append((match[2], self.callback(match[1], match[3])))
            self.structs.append(None)
        elif match := re.fullmatch(r"FFA_API (.*?)(\w+)\((.*)\)", part):
            arguments = [] if match[3] == "void" else [self.parameter(a) for a in self.split(match[3])]
            self.functions.append((match[2], self.type(match[1].strip()), arguments))
        else:
            raise SystemExit(f"not understood: {part}")

    def enum(self, body):
        value = -1
        for item in filter(None, (i.strip() for i in body.split(","))):
            name, _, given = item.partition("=")
            value = eval(re.sub(r"(?<=\d)u\b", "", given), dict(self.constants)) if given else value + 1
            self.constants[name.strip()] = value

    def struct(self, name, body):
        fields = []
        for field in filter(None, (f.strip() for f in body.split(";"))):
            if match := re.fullmatch(r"(.*?)\(\*(\w+)\)\((.*)\)", field):
                fields.append((match[2], self.callback(match[1], match[3])))
                continue
            kind, names = re.fullmatch(r"((?:const |volatile |struct )*\w+(?: const)?)\s+(.*)", field).groups()
            for declarator in self.split(names):
                stars, field_name, array = re.fullmatch(r"((?:\*|const| )*)(\w+)((?:\[\w+\])*)", declarator).groups()
                text = self.type(kind + " " + stars)
                for size in reversed(re.findall(r"\w+", array)):
                    text = f"{text} * {size}"
                fields.append((field_name, text))
        self.types[name] = name
        self.structs.append((name, fields))

    @staticmethod
    def split(text):
        return [p.strip() for p in re.split(r",(?![^(]*\))", text)]

    def callback(self, result, arguments):
        kinds = [self.parameter(a) for a in self.split(arguments)]
        # ctypes would leak the bytes that a callback returns: it returns their address.
        returned = self.type(result.strip()).replace("c_char_p", "c_void_p")
        return f"C.CFUNCTYPE({', '.join([returned] + kinds)})"

    def parameter(self, text):
        text = re.sub(r"(\w+)\[\w*\]$", r"*\1", text)
        return self.type(re.fullmatch(r"(.*?[ *])\w+", text)[1])

    def type(self, text):
        stars = text.count("*")
        word = " ".join(w for w in text.replace("*", " ").split() if w not in ("const", "volatile", "struct"))
        if stars:
            return "C.c_char_p" if word == "char" and stars == 1 and "const" in text else "C.c_void_p"
        if word == "void":
            return "None"
        kind = SCALARS.get(word) or self.types.get(word)
        if kind in (None, "opaque"):
            raise SystemExit(f"type not understood: {text}")
        return kind


def wrapped(words, begin, end):
    """The words, separated by commas, in lines of at most 120 columns."""
    line, indent = begin, " " * len(begin)
    for i, word in enumerate(words):
        word += end if i == len(words) - 1 else ","
        if len(line) + len(word) > 118:
            yield line.rstrip()
            line = indent
        line += word + " "
    yield line.rstrip() if words else begin + end


def module(api):
    lines = [HEAD]
    lines += [f"{name} = {value}" for name, value in api.constants.items()]
    callbacks = iter(api.callbacks)
    for item in api.structs:
        lines += ["", ""]
        if item is None:
            lines.pop()
            name, text = next(callbacks)
            lines.append(f"{name} = {text}")
            continue
        name, fields = item
        lines.append(f"class {name}(C.Structure):")
        lines += wrapped([f'("{f}", {kind})' for f, kind in fields], "    _fields_ = [", "]")
    lines += ["", "", "FUNCTIONS = {  # name: (result, arguments)"]
    for name, result, arguments in api.functions:
        lines += wrapped(arguments, f'    "{name}": ({result}, [', "]),")
    lines += ["}", "", "", "def declare(library):",
              '    """Give the functions of a loaded library their types."""',
              "    for name, (result, arguments) in FUNCTIONS.items():",
              "        function = getattr(library, name)",
              "        function.restype, function.argtypes = result, arguments"]
    return "\n".join(lines) + "\n"


def check(api, include, compiler):
    """Have the compiler print what the headers say, and compare it with the module."""
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "libffa", "_abi.py")
    spec = importlib.util.spec_from_file_location("_abi", path)
    abi = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(abi)
    import ctypes
    want, rows = [], []
    for name, value in api.constants.items():
        rows.append(f'printf("{name} %lld\\n", (long long)({name}));')
        want.append(f"{name} {getattr(abi, name)}")
    for name, fields in filter(None, api.structs):
        struct = getattr(abi, name)
        rows.append(f'printf("{name} %zu\\n", sizeof({name}));')
        want.append(f"{name} {ctypes.sizeof(struct)}")
        for field, _ in fields:
            rows.append(f'printf("{name}.{field} %zu %zu\\n", offsetof({name}, {field}), sizeof((({name} *)0)->{field}));')
            place = getattr(struct, field)
            want.append(f"{name}.{field} {place.offset} {place.size}")
    source = "#include <ffa/ffa.h>\n#include <ffa/dlpack.h>\n#include <stdio.h>\nint main(void){\n" + "\n".join(rows) + "\n}\n"
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "abi.c"), "w", encoding="utf-8") as file:
            file.write(source)
        subprocess.run([compiler, "-w", f"-I{include}", "-o", f"{folder}/abi", f"{folder}/abi.c"], check=True)
        have = subprocess.run([f"{folder}/abi"], check=True, capture_output=True, text=True).stdout.splitlines()
    for a, b in zip(want, have):
        if a != b:
            raise SystemExit(f"_abi.py says {a}, the compiler {b}")
    with open(path, encoding="utf-8") as file:
        if len(want) != len(have) or file.read() != module(api):
            raise SystemExit("_abi.py is not what the headers say: run generate_abi.py INCLUDE > libffa/_abi.py")
    print(f"{len(want)} sizes, offsets and constants agree")


if __name__ == "__main__":
    declared = Api(sys.argv[1])
    if len(sys.argv) > 2:
        check(declared, sys.argv[1], sys.argv[3])
    else:
        sys.stdout.write(module(declared))
