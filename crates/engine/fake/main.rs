//! A program that misbehaves on request: the first argument says how.

#![expect(clippy::print_stdout, clippy::unwrap_used, clippy::exit, reason = "a program for tests")]

use std::io::{Read, Write};
use std::time::Duration;

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        ["spew", bytes, chunk] => {
            spew(bytes.parse().unwrap(), chunk.parse().unwrap(), &mut [&mut std::io::stdout()])
        }
        ["spew-both", bytes, chunk] => {
            let (mut out, mut err) = (std::io::stdout(), std::io::stderr());
            spew(bytes.parse().unwrap(), chunk.parse().unwrap(), &mut [&mut out, &mut err]);
        }
        ["emit", script] => emit(script),
        ["hang"] => hang(),
        ["say-and-hang", text] => {
            println!("{text}");
            hang();
        }
        ["ignore-term"] => {
            ignore(libc::SIGTERM);
            println!("ready");
            hang();
        }
        ["stop-self"] => {
            println!("ready");
            raise(libc::SIGSTOP);
            hang();
        }
        ["self-signal", signal] => raise(signal.parse().unwrap()),
        // A grandchild keeps the pipes; the child exits.
        ["leave-holder"] => {
            if fork() == 0 {
                hang();
            }
            println!("gone");
        }
        ["leave-writer"] => {
            if fork() == 0 {
                loop {
                    println!("still here");
                    std::thread::sleep(Duration::from_millis(5));
                }
            }
        }
        ["leave-stubborn"] => {
            if fork() == 0 {
                ignore(libc::SIGTERM);
                hang();
            }
        }
        // A grandchild that exits a moment later, like `> >(tee log)`.
        ["leave-brief", ms] => {
            if fork() == 0 {
                std::thread::sleep(Duration::from_millis(ms.parse().unwrap()));
                println!("done");
            }
        }
        // Own session, no pipes, parent gone: a group kill misses it.
        ["daemonise", then] => {
            daemonise();
            if then == "hang" {
                hang();
            }
        }
        ["tree"] => tree(),
        ["allocate", bytes] => {
            let memory = vec![1u8; bytes.parse().unwrap()];
            println!("{}", memory.len());
            hang();
        }
        ["allocate-in-children", bytes, count] => {
            for _ in 0..count.parse::<u32>().unwrap() {
                if fork() == 0 {
                    let memory = vec![1u8; bytes.parse().unwrap()];
                    std::hint::black_box(&memory);
                    hang();
                }
            }
            hang();
        }
        ["burn"] => burn(),
        ["burn-in-children"] => loop {
            let child = fork();
            if child == 0 {
                let until = std::time::Instant::now() + Duration::from_millis(20);
                while std::time::Instant::now() < until {}
                std::process::exit(0);
            }
            // SAFETY: waits for the child just made.
            unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
        },
        ["fork-bomb"] => loop {
            // SAFETY: both sides continue with the same loop, which allocates nothing.
            if unsafe { libc::fork() } == 0 {
                hang();
            }
            std::thread::sleep(Duration::from_millis(1));
        },
        ["fork-comet"] => loop {
            // Each generation forks the next and exits.
            // SAFETY: as above.
            if unsafe { libc::fork() } != 0 {
                // SAFETY: ends at once.
                unsafe { libc::_exit(0) };
            }
        },
        ["open-files", count] => {
            let open: Result<Vec<_>, _> = (0..count.parse::<u32>().unwrap())
                .map(|_| std::fs::File::open("/dev/null"))
                .collect();
            std::process::exit(if open.is_ok() { 0 } else { 7 });
        }
        ["write-file", path, bytes] => {
            let result = std::fs::write(path, vec![0; bytes.parse().unwrap()]);
            std::process::exit(if result.is_ok() { 0 } else { 8 });
        }
        ["stop-parent"] => {
            // SAFETY: plain system calls.
            unsafe { libc::kill(libc::getppid(), libc::SIGSTOP) };
        }
        ["kill-parent"] => {
            daemonise_child();
            // SAFETY: plain system calls.
            unsafe { libc::kill(libc::getppid(), libc::SIGKILL) };
            hang();
        }
        ["describe"] => describe(),
        ["cat"] => {
            let mut all = Vec::new();
            std::io::stdin().read_to_end(&mut all).unwrap();
            std::io::stdout().write_all(&all).unwrap();
        }
        _ => {
            println!("no such way to misbehave: {words:?}");
            std::process::exit(99);
        }
    }
}

/// Log-like lines, so that nothing benefits from zeroes.
fn spew(mut left: usize, chunk: usize, to: &mut [&mut dyn Write]) {
    let line = b"2026-11-15T10:30:00.123Z INFO worker-07 finished request 8f3a2c in 17 ms\n";
    let block: Vec<u8> = line.iter().copied().cycle().take(chunk).collect();
    let mut turn = 0;
    while left > 0 {
        let n = left.min(chunk);
        let count = to.len();
        if to[turn % count].write_all(&block[..n]).is_err() {
            return;
        }
        turn += 1;
        left -= n;
    }
}

/// Plays a file of `stream byte, length (4 bytes, big-endian), bytes` records.
fn emit(script: &str) {
    let script = std::fs::read(script).unwrap();
    let mut rest = &script[..];
    while let [stream, a, b, c, d, tail @ ..] = rest {
        let length = u32::from_be_bytes([*a, *b, *c, *d]) as usize;
        let fd = i32::from(*stream);
        let mut bytes = &tail[..length];
        while !bytes.is_empty() {
            // SAFETY: writes from a live slice; unbuffered on purpose.
            let n = unsafe { libc::write(fd, bytes.as_ptr().cast(), bytes.len()) };
            bytes = &bytes[usize::try_from(n).unwrap()..];
        }
        rest = &tail[length..];
    }
}

fn hang() -> ! {
    loop {
        std::thread::sleep(Duration::from_secs(3600));
    }
}

fn fork() -> i32 {
    // SAFETY: this program has one thread.
    unsafe { libc::fork() }
}

fn ignore(signal: i32) {
    // SAFETY: a plain disposition.
    unsafe { libc::signal(signal, libc::SIG_IGN) };
}

fn raise(signal: i32) {
    // SAFETY: sends to ourselves.
    unsafe { libc::raise(signal) };
}

/// Prints the daemon's pid; returns in the child, which may hang or exit.
fn daemonise() {
    let middle = fork();
    if middle != 0 {
        // SAFETY: waits for the middle process.
        unsafe { libc::waitpid(middle, std::ptr::null_mut(), 0) };
        return;
    }
    // SAFETY: plain system calls.
    unsafe { libc::setsid() };
    let daemon = fork();
    if daemon != 0 {
        println!("{daemon}");
        std::process::exit(0);
    }
    // SAFETY: plain system calls; the daemon keeps nothing open and nothing in its environment.
    unsafe {
        libc::close(0);
        libc::close(1);
        libc::close(2);
    }
    hang();
}

fn daemonise_child() {
    let daemon = fork();
    if daemon == 0 {
        // SAFETY: starts a new session.
        unsafe { libc::setsid() };
        hang();
    }
    println!("{daemon}");
    std::io::stdout().flush().unwrap();
}

/// Every kind of descendant at once: plain, own group, own session, daemon. Prints their pids.
fn tree() {
    for kind in 0..3 {
        let child = fork();
        if child == 0 {
            // SAFETY: plain system calls.
            unsafe {
                match kind {
                    1 => libc::setpgid(0, 0),
                    2 => libc::setsid(),
                    _ => 0,
                };
            }
            ignore(libc::SIGTERM);
            hang();
        }
        println!("{child}");
    }
    daemonise();
    println!("ready");
    hang();
}

fn burn() -> ! {
    let mut n = 0u64;
    loop {
        n = std::hint::black_box(n.wrapping_add(1));
    }
}

/// Prints a child's view of its environment, one line each.
fn describe() {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    for line in status.lines().filter(|l| l.starts_with("SigBlk") || l.starts_with("SigIgn")) {
        println!("{line}");
    }
    for fd in 0..3 {
        // SAFETY: queries a descriptor.
        println!("tty{fd} {}", unsafe { libc::isatty(fd) });
    }
    let terminal = std::fs::File::open("/dev/tty").is_ok();
    println!("controlling {terminal}");
    // SAFETY: plain queries.
    unsafe {
        println!("leads-group {}", libc::getpgrp() == libc::getpid());
    }
    let mut fds: Vec<i32> = std::fs::read_dir("/proc/self/fd")
        .unwrap()
        .map(|e| e.unwrap().file_name().to_str().unwrap().parse().unwrap())
        // Excludes the descriptor of the directory being read.
        // SAFETY: queries a descriptor.
        .filter(|fd| unsafe { libc::fcntl(*fd, libc::F_GETFD) } == 0)
        .collect();
    fds.sort_unstable();
    println!("fds {fds:?}");
}
