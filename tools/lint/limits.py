"""Checks the lengths of files and functions, and the number of files in a folder. CUDA kernels may be longer."""
import ast
import collections
import re

from sources import CPP, Finding, read, strip_cpp

FILE_LIMIT = 500
FUNCTION_LIMIT = 60
FOLDER_LIMIT = 40
OWN_FOLDER_LIMIT = 25  # of folders of tessera/
SOURCES = CPP + (".py", ".sh", ".cmake")
NOT_A_FUNCTION = re.compile(r"\b(namespace|class|struct|union|enum|concept)\b[^()]*$")
ACCESS = re.compile(r"(\s*\b(public|protected|private)\s*:)*")
PREPROCESSOR = re.compile(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", re.M)


def large_folders(files):
    """Returns the folders with too many source files. Files in subfolders do not count."""
    counts = collections.Counter(path.parent for path in files if path.suffix in SOURCES)
    limits = {folder: OWN_FOLDER_LIMIT if folder.parts[:1] == ("tessera",) else FOLDER_LIMIT for folder in counts}
    return [Finding(str(folder), 1, f"the folder has {count} source files, limit {limits[folder]}")
            for folder, count in sorted(counts.items()) if count > limits[folder]]


def check(root, files, _options):
    findings = large_folders(files)
    for path in files:
        if path.suffix not in SOURCES and path.name != "run":
            continue
        text = read(root, path)
        count = text.count("\n")
        if count > FILE_LIMIT:
            findings.append(Finding(str(path), FILE_LIMIT + 1, f"the file has {count} lines, limit {FILE_LIMIT}"))
        for name, start, end in functions(path.suffix, text):
            if end - start + 1 > FUNCTION_LIMIT:
                what = f"{name} has {end - start + 1} lines, limit {FUNCTION_LIMIT}"
                findings.append(Finding(str(path), start, what))
    return findings


def functions(suffix, text):
    """Returns (name, first line, last line) of each function of a file."""
    if suffix in CPP:
        return cpp_functions(text)
    if suffix == ".py":
        return python_functions(text)
    return shell_functions(text) if suffix != ".cmake" else []


def python_functions(text):
    nodes = ast.walk(ast.parse(text))
    return [(node.name, node.lineno, node.end_lineno) for node in nodes
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]


def shell_functions(text):
    found, start, name = [], 0, ""
    for number, line in enumerate(text.splitlines(), 1):
        begin = re.match(r"([a-z_]+)\(\) \{\s*$", line)
        if begin:
            start, name = number, begin.group(1)
        elif line == "}" and start:
            found.append((name, start, number))
            start = 0
    return found


def cpp_functions(text):
    """Finds functions by walking through the braces of the text. At namespace and class scope, a `{` after a parameter list
    starts a function. Blocks, lambdas and
    initialisers inside a function belong to the function."""
    code = PREPROCESSOR.sub(lambda match: "\n" * match.group(0).count("\n"), strip_cpp(text))
    found, scopes, begin, position = [], 0, 0, 0
    while position < len(code):
        char = code[position]
        if char == ";" or (char == "}" and scopes):
            begin = position + 1
            scopes -= char == "}"
        elif char == "(":
            position = skip_balanced(code, position, "()")
        elif char == "{":
            begin = ACCESS.match(code, begin, position).end()
            header = code[begin:position]
            kind = classify(header)
            if kind == "scope":
                scopes += 1
                begin = position + 1
            else:
                end = skip_balanced(code, position, "{}")
                if kind == "function":
                    first = begin + len(header) - len(header.lstrip())
                    found.append((function_name(header), line_of(code, first), line_of(code, end)))
                    begin = end + 1
                position = end
        position += 1
    return found


def line_of(code, position):
    return code.count("\n", 0, position) + 1


def skip_balanced(code, position, pair):
    """Returns the position of the bracket that closes the bracket at `position`, or the end of the text."""
    depth = 0
    for here in range(position, len(code)):
        depth += (code[here] == pair[0]) - (code[here] == pair[1])
        if depth == 0:
            return here
    return len(code) - 1


def classify(header):
    """Returns scope (namespace or class), function, kernel (no limit) or other (an initialiser)."""
    flat = re.sub(r"<[^<>()]*>", "", re.sub(r"<[^<>()]*>", "", header)).strip()
    if not flat.endswith(")") and (NOT_A_FUNCTION.search(flat) or re.search(r"\bextern\s*\"\"$", flat)):
        return "scope"
    after = parameter_list_end(flat)
    if after is None or re.search(r"(?<![=!<>])=$", flat):
        return "other"
    if re.match(r"\s*(const|noexcept|override|final|\)|\s)*:(?!:)", flat[after:]) and re.search(r"[\w>]$", flat):
        return "other"  # member_{value} in the initialiser list of a constructor
    return "kernel" if "__global__" in flat or "__device__" in flat else "function"


def parameter_list_end(flat):
    """Returns the end of the first parameter list of a declaration. Returns None for a variable or a class."""
    equals = re.search(r"(?<![=!<>\w])=(?!=)", re.sub(r"operator\s*[=!<>+\-*/&|]+", "operator_", flat))
    opening = flat.find("(")
    if opening < 0 or (equals and equals.start() < opening):
        return None
    return skip_balanced(flat, opening, "()") + 1


def function_name(header):
    match = re.search(r"([~\w:]+(?:\s*operator[^\s(]+)?)\s*\(", header)
    name = match.group(1) if match else "function"
    if name.startswith(("TEST", "TYPED_TEST", "BENCHMARK")):
        return name + re.sub(r"\s+", " ", header[match.end() - 1:].strip())
    return name
