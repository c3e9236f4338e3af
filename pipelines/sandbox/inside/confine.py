"""Limits, landlock and the filter of system calls that a program gets before its first line. Linux on x86_64 and aarch64."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import resource
import struct
from typing import Any

libc: Any = ctypes.PyDLL(None, use_errno=True)
"""Without releasing the GIL: a bare clone in a thread of Python must come back holding it."""

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS = 1, 4, 22, 38
CLONE_NEWNS, CLONE_NEWIPC, CLONE_NEWUSER, CLONE_NEWPID = 0x00020000, 0x08000000, 0x10000000, 0x20000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8

_BOTH = {
    "pidfd_send_signal": 424, "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "open_tree": 428,
    "move_mount": 429, "fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433, "pidfd_open": 434,
    "pidfd_getfd": 438, "process_madvise": 440, "mount_setattr": 442, "quotactl_fd": 443, "memfd_secret": 447,
    "process_mrelease": 448, "fchmodat2": 452, "setxattrat": 463, "removexattrat": 466, "open_tree_attr": 467,
}  # fmt: skip
DENIED = {
    "x86_64": _BOTH | {
        "shmget": 29, "shmat": 30, "shmctl": 31, "socket": 41, "fork": 57, "vfork": 58, "execve": 59, "semget": 64,
        "semop": 65, "semctl": 66, "shmdt": 67, "msgget": 68, "msgsnd": 69, "msgrcv": 70, "msgctl": 71, "truncate": 76,
        "chmod": 90, "fchmod": 91, "chown": 92, "fchown": 93, "lchown": 94, "ptrace": 101, "syslog": 103,
        "rt_sigqueueinfo": 129, "utime": 132, "personality": 135, "setpriority": 141, "sched_setparam": 142,
        "sched_setscheduler": 144, "vhangup": 153, "modify_ldt": 154, "pivot_root": 155, "adjtimex": 159, "chroot": 161,
        "acct": 163, "settimeofday": 164, "mount": 165, "umount2": 166, "swapon": 167, "swapoff": 168, "reboot": 169,
        "sethostname": 170, "setdomainname": 171, "iopl": 172, "ioperm": 173, "init_module": 175, "delete_module": 176,
        "quotactl": 179, "setxattr": 188, "lsetxattr": 189, "fsetxattr": 190, "removexattr": 197, "lremovexattr": 198,
        "fremovexattr": 199, "tkill": 200, "semtimedop": 220, "clock_settime": 227, "utimes": 235, "mq_open": 240,
        "mq_unlink": 241, "kexec_load": 246, "add_key": 248, "request_key": 249, "keyctl": 250, "ioprio_set": 251,
        "fchownat": 260, "futimesat": 261, "fchmodat": 268, "unshare": 272, "utimensat": 280, "rt_tgsigqueueinfo": 297,
        "perf_event_open": 298, "fanotify_init": 300, "name_to_handle_at": 303, "open_by_handle_at": 304,
        "clock_adjtime": 305, "setns": 308, "process_vm_readv": 310, "process_vm_writev": 311, "finit_module": 313,
        "sched_setattr": 314, "memfd_create": 319, "kexec_file_load": 320, "bpf": 321, "execveat": 322, "userfaultfd": 323,
    },
    "aarch64": _BOTH | {
        "setxattr": 5, "lsetxattr": 6, "fsetxattr": 7, "removexattr": 14, "lremovexattr": 15, "fremovexattr": 16,
        "ioprio_set": 30, "umount2": 39, "mount": 40, "pivot_root": 41, "truncate": 45, "chroot": 51, "fchmod": 52,
        "fchmodat": 53, "fchownat": 54, "fchown": 55, "vhangup": 58, "quotactl": 60, "utimensat": 88, "acct": 89,
        "personality": 92, "unshare": 97, "kexec_load": 104, "init_module": 105, "delete_module": 106,
        "clock_settime": 112, "syslog": 116, "ptrace": 117, "sched_setparam": 118, "sched_setscheduler": 119,
        "tkill": 130, "rt_sigqueueinfo": 138, "setpriority": 140, "reboot": 142, "sethostname": 161,
        "setdomainname": 162, "settimeofday": 170, "adjtimex": 171, "mq_open": 180, "mq_unlink": 181, "msgget": 186,
        "msgctl": 187, "msgrcv": 188, "msgsnd": 189, "semget": 190, "semctl": 191, "semtimedop": 192, "semop": 193,
        "shmget": 194, "shmctl": 195, "shmat": 196, "shmdt": 197, "socket": 198, "add_key": 217, "request_key": 218,
        "keyctl": 219, "execve": 221, "swapon": 224, "swapoff": 225, "rt_tgsigqueueinfo": 240, "perf_event_open": 241,
        "fanotify_init": 262, "name_to_handle_at": 264, "open_by_handle_at": 265, "clock_adjtime": 266, "setns": 268,
        "process_vm_readv": 270, "process_vm_writev": 271, "finit_module": 273, "sched_setattr": 274,
        "memfd_create": 279, "bpf": 280, "execveat": 281, "userfaultfd": 282, "kexec_file_load": 294,
    },
}  # fmt: skip
"""Architecture → system call → number; they fail with EPERM."""
OF_A_SHELL = {
    "fork", "vfork", "execve", "chmod", "fchmod", "fchmodat", "fchmodat2", "truncate", "utime", "utimes", "futimesat", "utimensat",
}  # fmt: skip
"""What commands of a shell may call all the same: in namespaces there is nothing to reach with them but their own folder."""
SPECIAL = {
    "x86_64": {"ioctl": 16, "clone": 56, "kill": 62, "fcntl": 72, "tgkill": 234, "prlimit64": 302},
    "aarch64": {"fcntl": 25, "ioctl": 29, "kill": 129, "tgkill": 131, "clone": 220, "prlimit64": 261},
}
AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
SHELL, WORK, SCRATCH = "/bin/bash", "/work", "/tmp"
"""Of commands: what reads them, the working folder, and one whose files last as long as the command."""
FOLDER_ENTRIES = 2048
"""Files and folders that a folder for writing may hold."""
CLONE3, LANDLOCK = 435, (444, 445, 446)
CLONE_THREAD, NEW_NAMESPACES = 0x10000, 0x7E020000
SIGKILL, SIGSTOP = 9, 19
OWNERS = (8, 10, 15)  # F_SETOWN, F_SETSIG, F_SETOWN_EX: a signal to whoever is named
OWNER_IOCTLS = (0x8901, 0x8902, 0x5412)  # FIOSETOWN, SIOCSPGRP, TIOCSTI

_LOAD, _EQUAL, _ABOVE, _SET, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
ALLOW, KILL = 0x7FFF0000, 0x80000000
DENY = 0x00050000 | errno.EPERM
MISSING = 0x00050000 | errno.ENOSYS


def machine() -> str:
    """This processor's architecture.

    Raises:
        OSError: there is no table of system calls for it.
    """
    name = platform.machine()
    if name not in DENIED:
        raise OSError(f"no table of system calls for {name}")
    return name


def filter_program(architecture: str, pid: int, commands: bool = False) -> bytes:
    """The filter in BPF: what it denies comes back with EPERM.

    Args:
        pid: whom `kill` and `tgkill` may reach: the program itself.
        commands: processes may be made, may signal one another and change their files; for a process namespace of their own.
    """
    special = SPECIAL[architecture]
    code: list[tuple[int, int, int, int]] = []

    def load(offset: int) -> None:
        code.append((_LOAD, 0, 0, offset))

    def answer(value: int) -> None:
        code.append((_RETURN, 0, 0, value))

    def call(name: str, inside: list[tuple[int, int, int, int]]) -> None:
        code.append((_EQUAL, 0, len(inside), special[name]))
        code.extend(inside)

    def argument(index: int) -> tuple[int, int, int, int]:
        return (_LOAD, 0, 0, 16 + 8 * index)

    allow, deny = (_RETURN, 0, 0, ALLOW), (_RETURN, 0, 0, DENY)
    load(4)
    code.append((_EQUAL, 1, 0, AUDIT_ARCH[architecture]))
    answer(KILL)
    load(0)
    if architecture == "x86_64":  # x32
        code.append((_ABOVE, 0, 1, 0x40000000))
        answer(DENY)
    code.append((_EQUAL, 0, 1, CLONE3))
    answer(MISSING)  # its flags cannot be read here; the C library falls back to clone
    if commands:
        call("clone", [argument(0), (_SET, 0, 1, NEW_NAMESPACES), deny, allow])
    else:
        call("clone", [argument(0), (_SET, 1, 0, CLONE_THREAD), deny, allow])
    for name, signal_at in (("kill", 1), ("tgkill", 2)):  # init of a namespace cannot be stopped, so none can
        if commands:
            break
        own = [argument(0), (_EQUAL, 0, 3, pid), argument(signal_at), (_EQUAL, 1, 0, SIGKILL), (_EQUAL, 0, 1, SIGSTOP)]
        call(name, [*own, deny, allow])
    itself = 0 if commands else pid
    call("prlimit64", [argument(0), (_EQUAL, 2, 0, 0), (_EQUAL, 1, 0, itself), deny, allow])
    call("fcntl", [argument(1), *((_EQUAL, len(OWNERS) - i, 0, n) for i, n in enumerate(OWNERS)), allow, deny])
    call(
        "ioctl",
        [argument(1), *((_EQUAL, len(OWNER_IOCTLS) - i, 0, n) for i, n in enumerate(OWNER_IOCTLS)), allow, deny],
    )
    denied = {name: number for name, number in DENIED[architecture].items() if not commands or name not in OF_A_SHELL}
    for number in sorted(denied.values()):
        code.append((_EQUAL, 0, 1, number))
        answer(DENY)
    answer(ALLOW)
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in code)


def check(outcome: int, what: str) -> int:
    """The outcome of a C call.

    Raises:
        OSError: it failed; the message names it.
    """
    if outcome < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return outcome


def seal(pid: int, ruleset: int | None, commands: bool = False) -> None:
    """No new privileges, no capabilities, landlock where there is a ruleset, and the filter. Nothing undoes it."""
    check(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
    if ruleset is not None:
        check(libc.syscall(LANDLOCK[2], ruleset, 0), "landlock_restrict_self")
    header, nothing = struct.pack("=Ii", 0x20080522, 0), bytes(24)
    check(libc.capset(header, nothing), "capset")
    program = filter_program(machine(), pid, commands)
    buffer = ctypes.create_string_buffer(program, len(program))
    head = struct.pack("@HP", len(program) // 8, ctypes.addressof(buffer))
    check(libc.prctl(PR_SET_SECCOMP, 2, head, 0, 0), "seccomp")


def limit(limits: dict[str, int], processes: int | None) -> None:
    """The resource limits of one program.

    Args:
        limits: memory_bytes, cpu_s and file_bytes.
        processes: threads at most; None where the limit would count the user's other processes.
    """
    values = {
        resource.RLIMIT_AS: limits["memory_bytes"],
        resource.RLIMIT_CPU: limits["cpu_s"],
        resource.RLIMIT_FSIZE: limits["file_bytes"],
        resource.RLIMIT_NOFILE: 64,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_STACK: 8 << 20,
        resource.RLIMIT_MEMLOCK: 0,
        resource.RLIMIT_MSGQUEUE: 0,
    }
    if processes is not None:
        values[resource.RLIMIT_NPROC] = processes
    for name, value in values.items():
        hard = resource.getrlimit(name)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(name, (value, value))


def enter_namespaces(uid: int, gid: int, folders: dict[str, int] | None = None) -> None:
    """After a clone into new namespaces: one identity, no /proc, and folders that can be written.

    Args:
        uid: user id outside, mapped to 1000.
        gid: group id outside, mapped to 1000.
        folders: folder → bytes that it may hold; empty ones, in memory.
    """
    for name, text in (("setgroups", "deny"), ("uid_map", f"1000 {uid} 1"), ("gid_map", f"1000 {gid} 1")):
        with open(f"/proc/self/{name}", "w") as handle:
            handle.write(text)
    flags = MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC
    check(libc.mount(b"none", b"/proc", b"tmpfs", flags, b"size=4k,nr_inodes=2"), "mount over /proc")
    for folder, size in (folders or {}).items():
        about = f"size={size},nr_inodes={FOLDER_ENTRIES},mode=700".encode()
        check(libc.mount(b"none", folder.encode(), b"tmpfs", MS_NOSUID | MS_NODEV, about), f"mount over {folder}")


def landlock_abi() -> int:
    """The kernel's landlock version; 0 where there is none."""
    return max(0, libc.syscall(LANDLOCK[0], None, ctypes.c_size_t(0), 1))


def landlock_ruleset(readable: list[str]) -> int:
    """A ruleset that allows reading beneath some folders and nothing else: no writing, no TCP, no signals to others.

    Raises:
        OSError: the kernel has no landlock.
    """
    abi = landlock_abi()
    if not abi:
        raise OSError(errno.ENOSYS, "the kernel has no landlock")
    bits = {1: 13, 2: 14, 3: 15, 4: 15}.get(abi, 16)
    attributes = struct.pack("=QQQ", (1 << bits) - 1, 3 if abi >= 4 else 0, 3 if abi >= 6 else 0)
    size = 24 if abi >= 6 else 16 if abi >= 4 else 8
    ruleset = check(libc.syscall(LANDLOCK[0], attributes, ctypes.c_size_t(size), 0), "landlock_create_ruleset")
    read = 1 << 2
    paths = [(path, read | 1 << 0 | 1 << 3) for path in readable]
    paths += [("/dev/null", read | 1 << 1), ("/dev/zero", read), ("/dev/urandom", read)]
    for path, access in paths:
        try:
            descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError:
            continue
        rule = struct.pack("=Qi", access, descriptor)
        check(libc.syscall(LANDLOCK[1], ruleset, 1, rule, 0), f"landlock_add_rule {path}")
        os.close(descriptor)
    return ruleset
