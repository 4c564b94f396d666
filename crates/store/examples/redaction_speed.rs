//! CPU time of redaction by shape: `cargo run --release -p retake-store --example redaction_speed
//! FILE...`. Feeds each file to a stream in pieces of 256 KiB until a gigabyte has passed. Compare
//! with the time of a bare BLAKE3 over the same bytes.
#![expect(clippy::print_stdout, clippy::unwrap_used, reason = "a tool for developers")]

use std::hint::black_box;

use retake_store::redact::Redactor;

const TOTAL: usize = 1 << 30;
const PIECE: usize = 256 << 10;

fn main() {
    for path in std::env::args().skip(1) {
        let bytes = std::fs::read(&path).unwrap();
        let rounds = TOTAL.div_ceil(bytes.len().max(1));
        let redactor = Redactor::shapes();
        let mut stream = redactor.stream();
        let before = cpu_seconds();
        let mut kept = 0;
        for _ in 0..rounds {
            for piece in bytes.chunks(PIECE) {
                stream.push(piece, &mut |clean| kept += black_box(clean).len());
            }
        }
        stream.finish(&mut |clean| kept += clean.len());
        let redacted = cpu_seconds() - before;
        let before = cpu_seconds();
        for _ in 0..rounds {
            let mut hasher = blake3::Hasher::new();
            bytes.chunks(PIECE).for_each(|piece| {
                hasher.update(piece);
            });
            black_box(hasher.finalize());
        }
        let hashed = cpu_seconds() - before;
        let rate = |seconds: f64| (rounds * bytes.len()) as f64 / 1e9 / seconds;
        println!(
            "{path}: {} redactions, {:.2} GB per CPU second; BLAKE3 {:.2}",
            stream.count(),
            rate(redacted),
            rate(hashed)
        );
    }
}

fn cpu_seconds() -> f64 {
    // SAFETY: zero is a valid rusage, filled by the call.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &raw mut usage);
        usage
    };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}
