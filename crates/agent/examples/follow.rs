//! Measures the cost of following a stream of Claude Code from a file, part by part, as a loop
//! does: `cargo run --release -p retake-agent --example follow EVENTS`.

#![expect(clippy::print_stdout, reason = "a program for measuring")]

use std::borrow::Cow;
use std::path::Path;
use std::time::Instant;

use retake_agent::adapters::{AgentKind, Line, Lines, Reader, StreamEvent};
use retake_agent::display::Display;
use retake_agent::log::Log;

/// The size of one read from a pipe.
const CHUNK: usize = 1 << 16;

fn main() -> std::io::Result<()> {
    let path = std::env::args_os().nth(1).unwrap_or_default();
    let events = std::fs::read(path)?;
    let mut count = 0;
    measure("lines", &events, |chunks| {
        let mut lines = Lines::default();
        for chunk in chunks {
            lines.push(chunk, &mut |line| count += usize::from(matches!(line, Line::Text(_))));
        }
    });
    measure("events", &events, |chunks| {
        let mut reader = Reader::new(AgentKind::Claude);
        for chunk in chunks {
            reader.push(chunk, &mut |_| count += 1);
        }
    });
    measure("results decoded", &events, |chunks| {
        let mut reader = Reader::new(AgentKind::Claude);
        for chunk in chunks {
            reader.push(chunk, &mut |event| {
                if let StreamEvent::ToolResult { content, .. } = event {
                    count += content.text().len();
                }
            });
        }
    });
    measure("shown", &events, |chunks| {
        let mut reader = Reader::new(AgentKind::Claude);
        let mut shown = Display::default();
        for chunk in chunks {
            reader.push(chunk, &mut |event| {
                count += shown.event(event).map_or(0, |text| text.len());
            });
        }
    });
    measure("logged", &events, |chunks| {
        let mut reader = Reader::new(AgentKind::Claude);
        let mut shown = Display::default();
        let mut log = Log::create(Path::new("/dev/null"), Box::new(|text| Cow::Borrowed(text)));
        for chunk in chunks {
            reader.push(chunk, &mut |event| {
                if let Some(text) = shown.event(event) {
                    log.output(&text);
                }
            });
        }
    });
    println!("{count} counted");
    Ok(())
}

fn measure(what: &str, events: &[u8], read: impl FnOnce(std::slice::Chunks<'_, u8>)) {
    let start = Instant::now();
    read(events.chunks(CHUNK));
    let speed = events.len() as f64 / 1e6 / start.elapsed().as_secs_f64();
    println!("{what:<16} {speed:>7.0} MB/s");
}
