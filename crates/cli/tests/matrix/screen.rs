//! The display while a matrix runs: on wide and narrow terminals, and without one.

use std::fs::File;
use std::io::Read;
use std::os::fd::AsRawFd;

use crate::common::{RETAKE, Sandbox};
use crate::env::Env;

const CONFIG: &str = "command: sleep 0.15\niterations: 4\naxes: {n: [a, b]}\n";

/// Everything a call writes to a terminal of this width on stderr.
fn shown(env: &Env, columns: u16, variables: &[(&str, &str)], arguments: &[&str]) -> String {
    let (ours, theirs) = Sandbox::terminal();
    let size = libc::winsize { ws_row: 24, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: a terminal and a complete structure.
    unsafe { assert_eq!(libc::ioctl(ours.as_raw_fd(), libc::TIOCSWINSZ, &raw const size), 0) };
    let mut command = env.sandbox.command(RETAKE);
    command.env_remove("COLUMNS").env("TERM", "xterm").envs(variables.iter().copied());
    command.arg("matrix").args(arguments).stdout(std::process::Stdio::null()).stderr(theirs);
    let mut child = command.spawn().unwrap();
    // Otherwise this process's copy of the other end would keep the terminal open forever.
    drop(command);
    let mut text = Vec::new();
    // The end of a terminal is an error, not end-of-file.
    assert!(File::from(ours).read_to_end(&mut text).is_err());
    assert_eq!(child.wait().unwrap().code(), Some(0));
    String::from_utf8(text).unwrap().replace("\r\n", "\n")
}

/// The live lines, each as it was drawn.
fn live(text: &str) -> Vec<&str> {
    text.split("\r\u{1b}[2K").skip(1).map(|part| part.split('\n').next().unwrap()).collect()
}

#[test]
fn a_bar_grows_and_says_how_long_it_will_take() {
    let env = Env::bare();
    env.config(CONFIG);
    let text = shown(&env, 100, &[], &["run"]);
    let bars: Vec<&str> = live(&text).into_iter().filter(|line| line.contains('[')).collect();
    assert!(bars.iter().any(|bar| bar.starts_with("[------")), "{text:?}");
    let middle = bars.iter().find(|bar| bar.contains(" 4/8")).expect("half of it");
    assert!(middle.starts_with("[###############---------------] 4/8  ETA "), "{middle}");
    // It is erased at the end, and the rest is what a pipe would get.
    let last = text.rsplit("\r\u{1b}[2K").next().unwrap();
    assert!(last.starts_with("Done. 8 runs: 8 ok, 0 failed."), "{last:?}");
    assert_eq!(text.matches("exit:0").count(), 8, "{text}");
}

#[test]
fn a_narrow_terminal_gets_one_line_and_not_two() {
    let env = Env::bare();
    env.config(CONFIG);
    for columns in [14, 34] {
        let text = shown(&env, columns, &[], &["run", "--replace"]);
        let lines = live(&text);
        assert!(lines.iter().any(|line| line.contains("/8  ETA ")), "{text:?}");
        // The last line has no time left, and more room.
        let bar = |line: &&str| line.starts_with("[###") && line.contains("ETA");
        assert_eq!(lines.iter().any(bar), columns > 30, "{text:?}");
        for line in lines.iter().filter(|line| !line.contains("exit:") && !line.contains("Done")) {
            assert!(line.chars().count() < usize::from(columns), "{line:?}");
        }
    }
}

#[test]
fn without_colours_there_are_none_and_without_a_terminal_no_bar() {
    let env = Env::bare();
    env.config(CONFIG);
    for variables in [&[][..], &[("NO_COLOR", "1")]] {
        let text = shown(&env, 80, variables, &["run", "--replace"]);
        // Only the code that erases a line; a bar has no colours.
        assert!(!text.replace("\u{1b}[2K", "").contains('\u{1b}'), "{text:?}");
    }
    let piped = env.expect(0, &["run", "--replace"]).stderr;
    assert!(!piped.contains(['\r', '\u{1b}']), "{piped:?}");
    assert!(!piped.contains("ETA") && piped.contains("[8/8]"), "{piped}");
    let quiet = shown(&env, 80, &[], &["run", "--replace", "--quiet"]);
    assert_eq!(quiet, "");
}

#[test]
fn sampling_shows_what_is_decided_and_what_is_left_of_its_budget() {
    let env = Env::bare();
    env.config("command: 'echo metric: load=$((100 + AXIS_N * 50 + ITERATION % 3)); sleep 0.05'\niterations: 1\naxes: {n: [1, 2]}\n");
    let text =
        shown(&env, 100, &[], &["run", "--until-sure", "5%", "--metric", "load", "--budget", "5m"]);
    let bar = live(&text).into_iter().find(|line| line.contains(" 0/1 decided")).unwrap();
    assert!(bar.starts_with("[---") && bar.ends_with(" left"), "{bar}");
}
