//! Follows a stream of Claude Code from standard input and says how fast that went:
//! `retake-fake-agent | cargo run --release --example follow`, with a script that spews.

#![expect(clippy::print_stdout, reason = "a program for measuring")]

use std::io::Read;
use std::time::Instant;

use retake_agent::adapters::{AgentKind, Reader};

fn main() -> std::io::Result<()> {
    let mut reader = Reader::new(AgentKind::Claude);
    let mut input = std::io::stdin().lock();
    let mut buffer = vec![0; 1 << 16];
    let (mut bytes, mut events, mut reading) = (0u64, 0u64, std::time::Duration::ZERO);
    loop {
        let length = input.read(&mut buffer)?;
        let start = Instant::now();
        if length == 0 {
            reader.finish(&mut |_| events += 1);
        }
        reader.push(&buffer[..length], &mut |_| events += 1);
        reading += start.elapsed();
        bytes += length as u64;
        if length == 0 {
            break;
        }
    }
    let status = std::fs::read_to_string("/proc/self/status")?;
    let peak = status.lines().find(|line| line.starts_with("VmHWM")).unwrap_or_default();
    let speed = bytes as f64 / 1e6 / reading.as_secs_f64();
    println!("{bytes} bytes, {events} events, {speed:.0} MB/s, {peak}");
    Ok(())
}
