//! Simulates machines that lack something.

/// Removes a feature for a command and runs it: `landlock`, `namespaces`, `networks` (network
/// namespaces), `mounts`, and `questions` or `answers` of a notified call, by a filter of system calls;
/// `domain` by an outer Landlock domain that only forbids mounts.
pub(crate) const WITHOUT: &str = r#"
import ctypes, os, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
def must(result):
    if result < 0: sys.exit("cannot: " + os.strerror(ctypes.get_errno()))
    return result
def step(code, jt, jf, k): return struct.pack("HBBI", code, jt, jf, k)
LOAD, EQUAL, AND, RETURN = 0x20, 0x15, 0x54, 0x06
ALLOW = 0x7fff0000
def fail(errno): return 0x00050000 | errno
def when(number, errno): return [step(EQUAL, 0, 1, number), step(RETURN, 0, 0, fail(errno))]
program = [step(LOAD, 0, 0, 0)]
what = sys.argv[1].split(",")
if "landlock" in what:
    for number in (444, 445, 446): program += when(number, 38)
if "mounts" in what:
    for number in (165, 428, 429, 430, 432, 442): program += when(number, 1)
if "networks" in what:
    program += when(272, 1)
# To read and to answer what the kernel notifies of are requests of ioctl.
for lacking, request in (("questions", 0xc0502100), ("answers", 0xc0182101)):
    if lacking in what:
        program += [step(EQUAL, 0, 4, 16), step(LOAD, 0, 0, 24), step(EQUAL, 0, 1, request),
                    step(RETURN, 0, 0, fail(1)), step(LOAD, 0, 0, 0)]
if "namespaces" in what:
    # clone with CLONE_NEWUSER; clone3 is answered as if it did not exist
    program += when(272, 1) + when(435, 38)
    program += [step(EQUAL, 0, 4, 56), step(LOAD, 0, 0, 16), step(AND, 0, 0, 0x10000000),
                step(EQUAL, 1, 0, 0), step(RETURN, 0, 0, fail(1))]
program.append(step(RETURN, 0, 0, ALLOW))
must(libc.prctl(38, 1, 0, 0, 0))
if "domain" in what:
    # Making block devices is handled and denied, which nobody here does.
    ruleset = must(libc.syscall(444, ctypes.create_string_buffer(struct.pack("Q", 1 << 11)), 8, 0))
    must(libc.syscall(446, ruleset, 0))
code = ctypes.create_string_buffer(b"".join(program))
header = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(program), ctypes.addressof(code)))
must(libc.prctl(22, 2, header, 0, 0))
os.execvp(sys.argv[2], sys.argv[2:])
"#;
