//! Interprets the end of a child. Pure: no process, no file, no clock.

use std::time::Duration;

use super::point_trace::PointTrace;
use crate::channel::Message;
use crate::check_request::ExitKind;

/// Facts about a child that has ended.
#[derive(Debug, Clone)]
pub(crate) struct ChildOutcome {
    pub(crate) status: ExitKind,
    /// It was killed because its time was up.
    pub(crate) timed_out: Option<Duration>,
    /// The kernel's out-of-memory killer acted while it ran.
    pub(crate) out_of_memory: bool,
    pub(crate) messages: Vec<Message>,
    pub(crate) garbled: bool,
}

/// The result of an EXECUTION child.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Execution {
    /// It killed itself at its target, as planned.
    Crashed {
        label: String,
    },
    /// The workload returned without reaching the target.
    Ended {
        filtered: usize,
    },
    Failed {
        reason: String,
    },
}

/// The result of a VERIFY child.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Check {
    Passed { looked: bool },
    Failed { reason: String },
}

pub(crate) fn execution(outcome: &ChildOutcome, target: usize) -> Execution {
    let fail = |reason: String| Execution::Failed { reason };
    let trace = PointTrace::of(&outcome.messages);
    let when = trace
        .last()
        .map_or_else(|| "before its first crash point".to_owned(), |last| format!("after {last}"));
    if let Some(reason) = amiss(outcome, "the workload", &when) {
        return fail(reason);
    }
    if let Some(label) = outcome.messages.iter().find_map(|message| match message {
        Message::Forked { label } => Some(label),
        _ => None,
    }) {
        return fail(format!(
            "the workload forked, and crash point {label:?} was reached in the forked process; \
             points count in the process of the test alone"
        ));
    }
    let announced = outcome.messages.iter().find_map(|message| match message {
        Message::Crash { point_id } => Some(*point_id),
        _ => None,
    });
    let ended = outcome.messages.iter().find_map(|message| match message {
        Message::Ended { filtered } => Some(*filtered),
        _ => None,
    });
    match (announced, ended, outcome.status) {
        (Some(point_id), _, ExitKind::Signaled(libc::SIGKILL) | ExitKind::Exited(137)) => {
            let label = outcome.messages.iter().rev().find_map(|message| match message {
                Message::Point { label, .. } => Some(label.clone()),
                _ => None,
            });
            match label {
                Some(label) if point_id == target => Execution::Crashed { label },
                _ => fail(format!("crash point {point_id} was announced instead of {target}")),
            }
        }
        (Some(point_id), _, status) => {
            fail(format!("crash point {point_id} was announced, but the process {}", said(status)))
        }
        (None, Some(filtered), ExitKind::Exited(0)) => Execution::Ended { filtered },
        (None, None, ExitKind::Exited(0)) => {
            fail(format!("the workload ended the process (exit code 0) {when}, without returning"))
        }
        (None, Some(_), status) => {
            fail(format!("the workload returned, but the process then {}", said(status)))
        }
        (None, None, status) => fail(format!("the workload {} {when}", said(status))),
    }
}

pub(crate) fn check(outcome: &ChildOutcome) -> Check {
    let fail = |reason: String| Check::Failed { reason };
    if let Some(reason) = amiss(outcome, "verify", "") {
        return fail(reason);
    }
    let passed = outcome.messages.iter().find_map(|message| match message {
        Message::Passed { looked } => Some(*looked),
        _ => None,
    });
    match (passed, outcome.status) {
        (Some(looked), ExitKind::Exited(0)) => Check::Passed { looked },
        (Some(_), status) => {
            fail(format!("verify returned, but the process then {}", said(status)))
        }
        (None, ExitKind::Exited(0)) => {
            fail("verify ended the process (exit code 0) without returning".into())
        }
        (None, status) => fail(format!("verify {}", said(status))),
    }
}

/// Problems that can occur in either phase.
fn amiss(outcome: &ChildOutcome, who: &str, when: &str) -> Option<String> {
    let when = if when.is_empty() { String::new() } else { format!(" {when}") };
    if let Some(limit) = outcome.timed_out {
        return Some(format!("{who} did not finish within {limit:?}; it hung{when}"));
    }
    if outcome.garbled {
        return Some(format!("{who} wrote into a descriptor that is not its own (FIRST_CHANNEL)"));
    }
    let announced = outcome.messages.iter().any(|m| matches!(m, Message::Crash { .. }));
    if outcome.status == ExitKind::Signaled(libc::SIGKILL) && !announced {
        return Some(if outcome.out_of_memory {
            format!(
                "{who} was killed by SIGKILL{when}, which no crash point announced: the kernel's \
                 out-of-memory killer struck while it ran"
            )
        } else {
            format!(
                "{who} was killed by SIGKILL{when}, which no crash point announced; the kernel's \
                 out-of-memory killer did not strike, so it was sent by a process"
            )
        });
    }
    if !outcome.messages.contains(&Message::Hello) {
        return Some(match outcome.status {
            ExitKind::Exited(0) => {
                "the child ended without coming to first::test(): no test of that \
                                  name ran it; say `.name(\"module::test\")` if the name is wrong"
                    .to_owned()
            }
            status => format!("the child {} before it came to first::test()", said(status)),
        });
    }
    outcome.messages.iter().find_map(|message| match message {
        Message::Panicked { text } => Some(format!("{who} panicked{when}: {text}")),
        _ => None,
    })
}

fn said(status: ExitKind) -> String {
    match status {
        ExitKind::Exited(101) => "exited with code 101 (a panic)".to_owned(),
        ExitKind::Exited(code) => format!("exited with code {code}"),
        ExitKind::Signaled(signal) => format!("was terminated by {}", signal_name(signal)),
    }
}

fn signal_name(signal: i32) -> String {
    let name = match signal {
        libc::SIGABRT => "SIGABRT (an abort)",
        libc::SIGBUS => "SIGBUS",
        libc::SIGFPE => "SIGFPE",
        libc::SIGHUP => "SIGHUP",
        libc::SIGILL => "SIGILL",
        libc::SIGINT => "SIGINT",
        libc::SIGKILL => "SIGKILL",
        libc::SIGPIPE => "SIGPIPE",
        libc::SIGQUIT => "SIGQUIT",
        libc::SIGSEGV => "SIGSEGV (a bad memory access)",
        libc::SIGSYS => "SIGSYS (a forbidden system call)",
        libc::SIGTERM => "SIGTERM",
        libc::SIGTRAP => "SIGTRAP",
        libc::SIGXCPU => "SIGXCPU",
        libc::SIGXFSZ => "SIGXFSZ",
        _ => return format!("signal {signal}"),
    };
    name.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(label: &str) -> Message {
        Message::Point { own_thread: true, label: label.into() }
    }

    fn outcome(status: ExitKind, messages: &[Message]) -> ChildOutcome {
        let messages = [&[Message::Hello], messages].concat();
        ChildOutcome { status, timed_out: None, out_of_memory: false, messages, garbled: false }
    }

    fn failure(outcome: &ChildOutcome, target: usize) -> String {
        match execution(outcome, target) {
            Execution::Failed { reason } => reason,
            other => panic!("{other:?}"),
        }
    }

    const KILLED: ExitKind = ExitKind::Signaled(libc::SIGKILL);

    #[test]
    fn an_announced_kill_is_the_crash() {
        let messages = [point("a"), point("b"), Message::Crash { point_id: 2 }];
        let crashed = Execution::Crashed { label: "b".into() };
        assert_eq!(execution(&outcome(KILLED, &messages), 2), crashed);
        assert_eq!(execution(&outcome(ExitKind::Exited(137), &messages), 2), crashed);
        assert!(failure(&outcome(KILLED, &messages), 3).contains("instead of 3"));
        assert!(
            failure(&outcome(ExitKind::Exited(0), &messages), 2).contains("exited with code 0")
        );
    }

    #[test]
    fn any_other_kill_is_a_failure_that_says_so() {
        let mut killed = outcome(KILLED, &[point("a")]);
        let said = failure(&killed, 2);
        assert!(said.contains("no crash point announced; ") && said.contains("sent by"), "{said}");
        assert!(said.contains("after crash point 1 (\"a\")"), "{said}");
        killed.out_of_memory = true;
        assert!(failure(&killed, 2).contains("out-of-memory killer struck"));
        assert!(matches!(check(&killed), Check::Failed { reason } if reason.contains("struck")));
        // An exit code that looks like a kill does not count as one.
        let said = failure(&outcome(ExitKind::Exited(137), &[point("a")]), 2);
        assert!(said.contains("exited with code 137"), "{said}");
    }

    #[test]
    fn returning_ends_the_schedule() {
        let messages = [point("a"), Message::Ended { filtered: 3 }];
        let ended = outcome(ExitKind::Exited(0), &messages);
        assert_eq!(execution(&ended, 2), Execution::Ended { filtered: 3 });
        assert!(
            failure(&outcome(ExitKind::Exited(3), &messages), 2)
                .contains("then exited with code 3")
        );
    }

    #[test]
    fn exiting_is_not_returning() {
        let said = failure(&outcome(ExitKind::Exited(0), &[point("a")]), 2);
        assert!(said.contains("without returning"), "{said}");
        let reason = "verify ended the process (exit code 0) without returning".to_owned();
        assert_eq!(check(&outcome(ExitKind::Exited(0), &[])), Check::Failed { reason });
    }

    #[test]
    fn panics_are_reported_with_their_message() {
        let panicked = Message::Panicked { text: "no disk".into() };
        let said = failure(&outcome(ExitKind::Exited(101), std::slice::from_ref(&panicked)), 1);
        assert_eq!(said, "the workload panicked before its first crash point: no disk");
        let said = failure(&outcome(ExitKind::Exited(101), &[point("a"), panicked.clone()]), 2);
        assert_eq!(said, "the workload panicked after crash point 1 (\"a\"): no disk");
        let reason = "verify panicked: no disk".to_owned();
        // A test with `should_panic` turns the code into 0; it is a failure nevertheless.
        assert_eq!(check(&outcome(ExitKind::Exited(0), &[panicked])), Check::Failed { reason });
        let said = failure(&outcome(ExitKind::Exited(101), &[]), 1);
        assert_eq!(
            said,
            "the workload exited with code 101 (a panic) before its first crash point"
        );
    }

    #[test]
    fn the_rest_is_named() {
        let mut hung = outcome(KILLED, &[point("a")]);
        hung.timed_out = Some(Duration::from_secs(2));
        assert!(failure(&hung, 2).starts_with("the workload did not finish within 2s"));
        let abort = outcome(ExitKind::Signaled(libc::SIGABRT), &[]);
        assert!(matches!(check(&abort), Check::Failed { reason } if reason.contains("SIGABRT")));
        let forked = [Message::Forked { label: "x".into() }];
        assert!(failure(&outcome(ExitKind::Exited(0), &forked), 1).contains("forked"));
        let mut silent = outcome(ExitKind::Exited(0), &[]);
        silent.messages.clear();
        assert!(failure(&silent, 1).contains("without coming to first::test()"));
        silent.status = ExitKind::Exited(1);
        assert!(failure(&silent, 1).contains("exited with code 1 before it came to"));
        silent.garbled = true;
        assert!(failure(&silent, 1).contains("FIRST_CHANNEL"));
    }
}
