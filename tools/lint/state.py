"""No mutable process-wide state: what our static libraries put into .data, .bss and thread-local sections."""
import re
import subprocess

from sources import Finding, Skip

MUTABLE = re.compile(r"^\.(data(?!\.rel\.ro)|bss|tdata|tbss|ldata|lbss)")
# A constexpr std::array of pointers or string_views: g++ lays it in .data.rel.local, where a C array would go to
# .data.rel.ro. The name is that of a constant, which .clang-tidy keeps for constants.
CONSTANT_TABLE = re.compile(r"(^|::)k[A-Z]\w*$")
ALLOWED = "tools/lint/state_allowed.txt"


def parse_allowed(text):
    """Lines `REGEX  # REASON`; returns [(pattern, reason)] and complains about a line without a reason."""
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
    """(object file, symbol, section, size) of each mutable object in the output of `nm -f sysv`."""
    symbols, member = [], ""
    for line in output.splitlines():
        heading = re.match(r"Symbols from (?:.*\[)?([^\]]+?)\]?:$", line)
        if heading:
            member = heading.group(1)
            continue
        # Name |Value |Class|Type |Size |Line |Section, and a C++ name may itself hold the separator.
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
            what = f"{member}: {name} lies in {section} ({size} bytes): no mutable process-wide state ({ALLOWED})"
            findings.append(Finding(library, 1, what))
    return findings


def check(root, _files, options):
    libraries = sorted((root / options.build).glob("tessera/*/libtessera_*.a"))
    if not libraries:
        raise Skip(f"no library in {options.build}: ./run build makes them")
    allowed, findings = parse_allowed((root / ALLOWED).read_text())
    for library in libraries:
        result = subprocess.run(["nm", "-C", "-f", "sysv", "--defined-only", str(library)], capture_output=True, text=True,
                                check=False)
        if result.returncode != 0:
            raise Skip(f"nm: {result.stderr.strip()}")
        findings += find_state(result.stdout, str(library.relative_to(root)), allowed)
    return findings
