//! The log of one run: `iterate-YYYYMMDD-HHMMSS.log`.
//!
//! Constant parts are written once at the top. A file error turns the log off until the next
//! iteration and is reported; it never stops the loop. The agent's output is left out once the log
//! has reached its maximum size: the record has all of it.

use std::borrow::Cow;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use jiff::Timestamp;

use crate::adapters::AgentKind;

/// The log size at which the agent's output ends.
const LARGEST: u64 = 64 << 20;

/// Buffered text is written at this size, at the end of an iteration, and at the end.
const BUFFER: usize = 10 * 1024;
/// A longer unfinished line is written in parts.
const LONGEST_LINE: usize = 16 * BUFFER;

pub fn file_name(started: Timestamp) -> String {
    format!("iterate-{}.log", started.strftime("%Y%m%d-%H%M%S"))
}

/// A time with milliseconds and a `Z`.
pub fn stamp(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%S%.3fZ").to_string()
}

/// The constant parts.
#[derive(Clone, Debug)]
pub struct Head<'a> {
    pub workspace: &'a str,
    pub mode: &'a str,
    pub max_iterations: u32,
    pub instructions: &'a str,
    pub system_prompt: &'a str,
    pub status_instructions: Option<&'a str>,
}

type Redact = Box<dyn for<'a> Fn(&'a str) -> Cow<'a, str> + Send>;

pub struct Log {
    path: PathBuf,
    /// `None` after a failure.
    file: Option<File>,
    /// Text that is not redacted yet.
    held: String,
    redact: Redact,
    error: Option<String>,
    /// The last reported error.
    told: Option<String>,
    written: u64,
    largest: u64,
    /// Whether the omission of output was logged.
    full: bool,
}

impl std::fmt::Debug for Log {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Log").field("path", &self.path).finish_non_exhaustive()
    }
}

impl Log {
    /// Creates the file. If that fails, the log is off and [`Log::take_error`] returns the error.
    pub fn create(path: &Path, redact: Redact) -> Self {
        let mut log = Self {
            path: path.to_owned(),
            file: None,
            held: String::new(),
            redact,
            error: None,
            told: None,
            written: 0,
            largest: LARGEST,
            full: false,
        };
        log.open();
        log
    }

    fn open(&mut self) {
        let opened = OpenOptions::new()
            .append(true)
            .create(true)
            .mode(0o600)
            .custom_flags(libc::O_NOFOLLOW)
            .open(&self.path);
        match opened {
            Ok(file) => self.file = Some(file),
            Err(error) => self.fail(&error),
        }
    }

    /// A full disk may have space again, and an agent may have deleted the file.
    fn reopen(&mut self) {
        let there = std::fs::symlink_metadata(&self.path).ok();
        let ours = self.file.as_ref().and_then(|file| file.metadata().ok());
        let same =
            |a: &std::fs::Metadata, b: &std::fs::Metadata| (a.dev(), a.ino()) == (b.dev(), b.ino());
        let was_off = self.file.is_none();
        if matches!((&there, &ours), (Some(there), Some(ours)) if same(there, ours)) {
            return;
        }
        self.open();
        if self.file.is_some() {
            let why = if was_off { "Logging was off until here" } else { "The log was deleted" };
            self.note(why);
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Why the log is off; returned once.
    pub fn take_error(&mut self) -> Option<String> {
        self.error.take()
    }

    pub fn head(&mut self, head: &Head<'_>, started: Timestamp) {
        let at = stamp(started);
        self.banner(&["RETAKE - EXECUTION LOG", &format!("Started: {at}")]);
        self.banner(&["RUN METADATA"]);
        self.text(&format!(
            "Workspace: {}\nMode: {}\nMax Iterations: {}\nStart Time: {at}\n\n",
            head.workspace, head.mode, head.max_iterations
        ));
        let mut sections =
            vec![("INSTRUCTIONS", head.instructions), ("SYSTEM PROMPT", head.system_prompt)];
        if let Some(own) = head.status_instructions {
            sections.push(("STATUS INSTRUCTIONS", own));
        }
        for (title, content) in sections {
            self.banner(&[title]);
            self.text(&format!("{}\n\n", content.trim_end()));
        }
        self.flush();
    }

    pub fn iteration(&mut self, number: u32, kind: AgentKind, at: Timestamp) {
        self.end_line();
        self.reopen();
        self.banner(&[&format!("ITERATION {number}"), &format!("Started: {}", stamp(at))]);
        let agent = match kind {
            AgentKind::Claude => "CLAUDE",
            AgentKind::Codex => "CODEX",
            AgentKind::Gemini => "GEMINI",
            AgentKind::Opencode => "OPENCODE",
            AgentKind::Custom => "AGENT",
        };
        self.text(&format!("\n{agent} OUTPUT:\n"));
    }

    /// Whether the agent's output is still logged.
    pub fn takes_output(&self) -> bool {
        self.file.is_some() && !self.full
    }

    /// Output of the agent as it arrives: its text, or its displayed tool uses.
    pub fn output(&mut self, text: &str) {
        if self.written < self.largest {
            self.text(text);
        } else if !std::mem::replace(&mut self.full, true) {
            self.note("The log is full: from here on the agent's output is only in the record");
        }
    }

    pub fn iteration_end(&mut self, status: &str, at: Timestamp, remaining: Option<u64>) {
        self.end_line();
        let remaining = remaining.map_or_else(|| "unknown".to_owned(), |n| n.to_string());
        let at = stamp(at);
        self.text(&format!("\nSTATUS: {status}\nCompleted: {at}\nRemaining: {remaining}\n\n"));
        self.flush();
    }

    pub fn error(&mut self, at: Timestamp, message: &str, details: &[String]) {
        self.end_line();
        self.text(&format!("\nERROR: {message}\nTime: {}\n", stamp(at)));
        for line in details {
            self.text(&format!("  {line}\n"));
        }
        self.text("\n");
        self.flush();
    }

    /// A remark of the loop itself, such as a wait or the end.
    pub fn note(&mut self, text: &str) {
        self.end_line();
        self.text(&format!("{text}\n"));
    }

    /// Writes all buffered text.
    pub fn flush(&mut self) {
        self.write(self.held.len());
    }

    fn banner(&mut self, lines: &[&str]) {
        let bar = "=".repeat(80);
        self.text(&format!("{bar}\n{}\n{bar}\n", lines.join("\n")));
        if lines.len() > 1 && lines[0].starts_with("RETAKE") {
            self.text("\n");
        }
    }

    /// Buffers text: redaction works on whole lines, so that it finds a secret in two pieces, and
    /// on many lines at once.
    fn text(&mut self, text: &str) {
        if self.file.is_none() {
            return;
        }
        self.held.push_str(text);
        if self.held.len() > BUFFER {
            self.write_lines();
        }
    }

    fn end_line(&mut self) {
        if !self.held.is_empty() && !self.held.ends_with('\n') {
            self.text("\n");
        }
    }

    /// Writes complete lines.
    fn write_lines(&mut self) {
        let whole = match memchr::memrchr(b'\n', self.held.as_bytes()) {
            Some(end) => end + 1,
            // An endless line must not fill the memory.
            None if self.held.len() > LONGEST_LINE => self.held.len(),
            None => return,
        };
        self.write(whole);
    }

    /// Writes this much of the buffered text.
    fn write(&mut self, length: usize) {
        let Some(file) = &mut self.file else { return };
        let clean = (self.redact)(&self.held[..length]);
        let written = file.write_all(clean.as_bytes());
        self.written += clean.len() as u64;
        self.held.drain(..length);
        match written {
            Ok(()) => self.told = None,
            Err(error) => self.fail(&error),
        }
    }

    fn fail(&mut self, error: &io::Error) {
        self.file = None;
        self.held = String::new();
        let error = format!("{}: {error}", self.path.display());
        // The next iteration tries again; the same error is not reported again.
        if self.told.as_ref() != Some(&error) {
            self.told = Some(error.clone());
            self.error = Some(error);
        }
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        self.flush();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: Head<'static> = Head {
        workspace: "my-task",
        mode: "loop",
        max_iterations: 50,
        instructions: "Do it.\n",
        system_prompt: "You are.\n",
        status_instructions: None,
    };

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_760_538_225 + second).unwrap()
    }

    #[test]
    fn the_log_has_the_specified_format() {
        assert_eq!(file_name(at(0)), "iterate-20251015-142345.log");
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(file_name(at(0)));
        let mut log =
            Log::create(&path, Box::new(|text| text.replace("hunter2", "[REDACTED]").into()));
        log.head(&HEAD, at(0));
        log.iteration(1, AgentKind::Claude, at(5));
        log.output("my password is hun");
        log.output("ter2\nwithout end");
        log.iteration_end("success", at(30), Some(4));
        log.iteration(2, AgentKind::Claude, at(32));
        log.error(at(33), "Iteration 2 failed", &["why".to_owned()]);
        drop(log);
        let bar = "=".repeat(80);
        let expected = format!(
            "{bar}\nRETAKE - EXECUTION LOG\nStarted: 2025-10-15T14:23:45.000Z\n{bar}\n\n\
             {bar}\nRUN METADATA\n{bar}\nWorkspace: my-task\nMode: loop\nMax Iterations: 50\n\
             Start Time: 2025-10-15T14:23:45.000Z\n\n\
             {bar}\nINSTRUCTIONS\n{bar}\nDo it.\n\n\
             {bar}\nSYSTEM PROMPT\n{bar}\nYou are.\n\n\
             {bar}\nITERATION 1\nStarted: 2025-10-15T14:23:50.000Z\n{bar}\n\n\
             CLAUDE OUTPUT:\nmy password is [REDACTED]\nwithout end\n\n\
             STATUS: success\nCompleted: 2025-10-15T14:24:15.000Z\nRemaining: 4\n\n\
             {bar}\nITERATION 2\nStarted: 2025-10-15T14:24:17.000Z\n{bar}\n\n\
             CLAUDE OUTPUT:\n\n\
             ERROR: Iteration 2 failed\nTime: 2025-10-15T14:24:18.000Z\n  why\n\n"
        );
        assert_eq!(std::fs::read_to_string(&path).unwrap(), expected);
    }

    #[test]
    fn is_held_back_and_written_at_ten_kilobytes_and_at_the_end() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.log");
        let size = || std::fs::metadata(&path).unwrap().len();
        let mut log = Log::create(&path, Box::new(|text| text.into()));
        log.output(&"x\n".repeat(BUFFER / 2));
        assert_eq!(size(), 0);
        log.output("y\n");
        assert_eq!(size(), BUFFER as u64 + 2);
        log.output("z");
        drop(log);
        assert_eq!(size(), BUFFER as u64 + 3);
    }

    #[test]
    fn a_log_error_is_reported_once_and_stops_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let mut log = Log::create(&dir.path().join("no/such.log"), Box::new(|text| text.into()));
        log.head(&HEAD, at(0));
        log.iteration(1, AgentKind::Claude, at(1));
        log.output("x");
        assert!(log.take_error().unwrap().contains("no/such.log"));
        assert_eq!(log.take_error(), None);
        // A disk that becomes full.
        let mut log = Log::create(Path::new("/dev/full"), Box::new(|text| text.into()));
        assert_eq!(log.take_error(), None);
        log.head(&HEAD, at(0));
        assert!(log.take_error().is_some());
        log.iteration_end("success", at(1), None);
        assert_eq!(log.take_error(), None);
    }
}
