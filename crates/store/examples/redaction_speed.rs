//! What redaction by shape costs: CPU time over 256 MiB of log lines, in pieces of 64 KiB, beside
//! hashing and writing the same bytes as a capture does.
//!
//!     cargo run --release -p retake-store --example redaction_speed [FILE]

#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a measurement for people")]

use std::io::{Seek, Write};

use retake_store::redact::Redactor;

const TOTAL: usize = 256 << 20;
const PIECE: usize = 64 << 10;

fn cpu_ns() -> u64 {
    // SAFETY: zero is a valid timespec, filled by the call.
    let time = unsafe {
        let mut time: libc::timespec = std::mem::zeroed();
        libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time);
        time
    };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Lines as build tools print them.
fn log_lines() -> Vec<u8> {
    let mut text = String::new();
    for n in 0..4000u64 {
        let hash = n.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        text.push_str(&format!(
            "2026-11-16T20:{:02}:{:02}.{:03}Z INFO  request_handler: GET /api/v1/items/{n} took {}ms status=200\n\
             \x20  Compiling some-crate_{n} v0.{}.1 (/home/user/project/crates/some-crate)\n\
             npm http fetch GET 200 https://registry.npmjs.org/package-{n} 53ms (cache hit)\n\
             test module_{n}::tests::it_works_as_described ... ok\n\
             sha256:{hash:016x}{hash:016x} layer-{n} id=018f3f6e-8d7a-7c3b-9f53-{:012x}\n\
             warning: unused variable: `value_{n}` at src/lib.rs:{n}:13, help: prefix it with an underscore\n",
            n % 60, n % 59, n % 1000, n % 97, n % 13, hash >> 16,
        ));
    }
    text.into_bytes()
}

fn main() {
    let text = match std::env::args().nth(1) {
        Some(file) => std::fs::read(file).unwrap(),
        None => log_lines(),
    };
    let path = std::env::temp_dir().join(format!("redaction-speed.{}", std::process::id()));
    let mut file = std::fs::File::create(&path).unwrap();
    let mut times: [Vec<f64>; 3] = Default::default();
    for _ in 0..5 {
        for (variant, redactor) in
            [Redactor::off(), Redactor::off(), Redactor::shapes()].iter().enumerate()
        {
            file.set_len(0).unwrap();
            file.rewind().unwrap();
            let (mut stream, mut hasher) = (redactor.stream(), blake3::Hasher::new());
            let (mut done, start) = (0, cpu_ns());
            while done < TOTAL {
                for piece in text.chunks(PIECE) {
                    stream.push(piece, &mut |bytes| {
                        hasher.update(&bytes);
                        // Kept short of filling the disk: the same pages again and again.
                        if variant != 0 {
                            file.write_all(&bytes).unwrap();
                        }
                    });
                    done += piece.len();
                }
                file.rewind().unwrap();
            }
            stream.finish(&mut |bytes| _ = hasher.update(&bytes));
            times[variant].push((cpu_ns() - start) as f64 / done as f64);
            assert_eq!(stream.count(), 0);
        }
    }
    let median = |times: &mut Vec<f64>| {
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    };
    let [hash, capture, redacted] = times.each_mut().map(median);
    println!("hash only                 {hash:.4} ns/byte");
    println!("hash and write            {capture:.4} ns/byte");
    println!("the same, shapes redacted {redacted:.4} ns/byte");
    println!(
        "redaction                 {:.4} ns/byte, {:.1} %",
        redacted - capture,
        100.0 * (redacted / capture - 1.0)
    );
    std::fs::remove_file(path).unwrap();
}
