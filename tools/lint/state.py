"""Refuses mutable global state: objects of our static libraries in .data, .bss and thread-local sections."""
import re
import subprocess

from sources import Finding, Skip

MUTABLE = re.compile(r"^\.(data(?!\.rel\.ro)|bss|tdata|tbss|ldata|lbss)")
# g++ puts a constexpr std::array of pointers or string_views into .data.rel.local, but a C array into .data.rel.ro. Such an
# object has the name of a constant, and .clang-tidy refuses this form of name for variables.
CONSTANT_TABLE = re.compile(r"(^|::)k[A-Z]\w*$")
ALLOWED = "tools/lint/state_allowed.txt"


def parse_allowed(text):
    """Parses lines `REGEX  # REASON`. Returns [(pattern, reason)], and a finding for each line without a reason."""
    allowed, findings = [], []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        pattern, _, reason = line.partition("  # ")
        if not reason.strip():
            findings.append(Finding(ALLOWED, number, "expected `REGEX  # REASON`"))
            continue
        allowed.append((re.compile(pattern.strip()), reason.strip()))
    return allowed, findings


def parse_symbols(output):
    """Returns (object file, symbol, section, size) of each mutable object in the output of `nm -f sysv`."""
    symbols, member = [], ""
    for line in output.splitlines():
        heading = re.match(r"Symbols from (?:.*\[)?([^\]]+?)\]?:$", line)
        if heading:
            member = heading.group(1)
            continue
        # Name |Value |Class|Type |Size |Line |Section. A C++ name may contain the separator.
        fields = line.rsplit("|", 6)
        if len(fields) == 7 and MUTABLE.match(fields[6].strip()):
            kind = fields[3].strip()
            if kind in ("OBJECT", "TLS", "NOTYPE", "GNU_UNIQUE", "UNIQUE"):
                symbols.append((member, fields[0].strip(), fields[6].strip(), int(fields[4].strip() or "0", 16)))
    return symbols


def find_state(output, library, allowed):
    findings = []
    for member, name, section, size in parse_symbols(output):
        if section.startswith(".data.rel") and CONSTANT_TABLE.search(name):
            continue
        if size and not any(pattern.search(name) for pattern, _ in allowed):
            what = f"{member}: {name} is in {section} ({size} bytes), expected no mutable global state; exceptions: {ALLOWED}"
            findings.append(Finding(library, 1, what))
    return findings


def check(root, _files, options):
    libraries = sorted((root / options.build).glob("tessera/*/libtessera_*.a"))
    if not libraries:
        raise Skip(f"there is no library in {options.build}: run ./run build first")
    allowed, findings = parse_allowed((root / ALLOWED).read_text())
    for library in libraries:
        result = subprocess.run(["nm", "-C", "-f", "sysv", "--defined-only", str(library)], capture_output=True, text=True,
                                check=False)
        if result.returncode != 0:
            raise Skip(f"nm: {result.stderr.strip()}")
        findings += find_state(result.stdout, str(library.relative_to(root)), allowed)
    return findings
