//! Messages for what the crates below report as values: notices, reasons of a refusal, and advice about
//! errors.

use std::path::Path;

use retake_runner::loop_driver::remote::RemoteStatus;
use retake_runner::machine;
use retake_runner::notice::{Notice, RemoteNotice};
use retake_runner::record_location::LocationReason;
use retake_runner::run::FinishedRun;
use retake_runner::run_text::{self, LeftGroup};
use retake_runner::sandbox_settings::{SettingsFault, SettingsProblem};
use retake_store::{Defect, OutputDamage};
use retake_types::request::CommandForm;
use retake_types::{
    DroppedPromise, Effects, ErrorCode, ErrorDetail, Intent, LeftFate, LimitKind, Outcome,
    OutcomeKind, RefusalReason, Run, RunError, SandboxPart, SandboxReport, StartFailure, text,
};

use crate::{denied, term};

/// What is wrong with the record, and what to do about it.
pub(crate) fn store_error(error: &retake_store::Error) -> String {
    use retake_store::Error;
    let advice = match error {
        Error::NoLocation => "; name one with --store",
        Error::InUse { .. } => "; wait for its runs to end, or stop them, and move it then",
        Error::Occupied { .. } => "; move the existing files away, or leave the record where it is",
        Error::NoStore { .. } => "; `retake init` creates one, as does the first recorded run",
        Error::NotWritable { .. } => "; check its permissions, or name another with --store",
        Error::ForeignOwner { .. } => "; use a store of your own with --store",
        Error::NetworkFilesystem { .. } => {
            "; put the store on a local disk with --store or RETAKE_STORE"
        }
        Error::NotARecord { .. } => ". Move it away or name another store with --store",
        Error::Corrupt { .. } => {
            ". `retake doctor --repair` keeps a copy and recovers what can be read"
        }
        Error::DiskFull { .. } => "; free some space (`retake runs prune` helps) and run again",
        Error::FileSizeLimit { .. } => "; raise that limit, or start retake without it",
        Error::BadEntry { .. } => "; `retake audit verify` shows the place",
        Error::OutputDamaged { .. } | Error::OrderAltered { .. } | Error::Reading { .. } => {
            "; `retake audit verify` finds everything that is damaged"
        }
        Error::NotFound { .. } => "; `retake runs list` shows the recorded runs",
        _ => "",
    };
    match error {
        Error::ForeignOwner { path, owner, .. } => format!(
            "{} belongs to {}, not to you{advice}",
            path.display(),
            machine::user_by_id(*owner)
        ),
        Error::NoRoomToRepair { path, needed } => {
            let directory = path.parent().unwrap_or(path);
            format!(
                "{} is damaged, and its disk has no room for a new database: free {} on the disk of {} \
                 and run `retake doctor --repair` again; nothing was changed",
                path.display(),
                term::size(*needed),
                directory.display(),
            )
        }
        error => format!("{error}{advice}"),
    }
}

/// The same for a command that frees space itself.
pub(crate) fn erasing_error(error: &retake_store::Error) -> String {
    match error {
        retake_store::Error::DiskFull { .. } => {
            format!("{error}, even for erasing runs; free some space on that disk and run again")
        }
        error => store_error(error),
    }
}

/// Why the record is where it is.
pub(crate) fn location(reason: &LocationReason) -> String {
    match reason {
        LocationReason::Given => "named with --store or RETAKE_STORE".to_owned(),
        LocationReason::Project { root } => format!("the record of the project {}", root.display()),
        LocationReason::GitDirectory(common) => {
            format!("in the git directory {}, for all of its work trees", common.display())
        }
        LocationReason::NoProject => {
            "your data directory, since this is neither a project nor a git repository".to_owned()
        }
        LocationReason::ForeignGitDirectory { git_dir, owner } => format!(
            "your data directory, since {} belongs to {}",
            git_dir.display(),
            machine::user_by_id(*owner)
        ),
        LocationReason::ReadOnlyGitDirectory(git_dir) => {
            format!("your data directory, since {} cannot be written", git_dir.display())
        }
    }
}

/// A defect that `doctor` found, and what repairs it.
pub(crate) fn defect(defect: &Defect) -> String {
    let advice = match defect {
        Defect::Integrity(_) | Defect::Schema(_) => {
            "; `retake doctor --repair` recovers what can be read"
        }
        Defect::Orphan(_) => "; `retake doctor --repair` sets it aside",
        Defect::DamagedOutput { damage: OutputDamage::WrongRow, .. } => {
            "; `retake doctor --repair` looks for it"
        }
        _ => "",
    };
    format!("{defect}{advice}")
}

/// A notice: something to know besides the result.
pub(crate) fn notice(notice: &Notice) -> String {
    match notice {
        Notice::NotRecorded(error) => {
            format!("this run is not recorded: {}", store_error(error))
        }
        Notice::RecordElsewhere(found) => {
            format!("the record is {}: {}", found.store.display(), location(&found.reason))
        }
        Notice::TakenOver { runs, left, from, store } => {
            let mut text = format!(
                "copied {} of this directory from {} to {}",
                text::count(*runs, "earlier run"),
                from.display(),
                store.display()
            );
            if *left > 0 {
                text.push_str(&format!("; {left} still running or with lost output not copied"));
            }
            text
        }
        Notice::NotTakenOver(error) => {
            format!("earlier runs of this directory could not be copied: {}", store_error(error))
        }
        Notice::OutcomeNotRecorded(error) => {
            format!("the outcome of this run is not recorded: {}", store_error(error))
        }
        Notice::OutputLost { bytes, error } => {
            format!(
                "{} of output not in the record: {}",
                text::count(*bytes, "byte"),
                store_error(error)
            )
        }
        Notice::NestedRunsNotRecorded(error) => format!(
            "runs that were recorded inside of the sandbox are not in the record: {}",
            store_error(error)
        ),
        Notice::RunnerDied(run) => {
            let left = run.outcome.as_ref().map_or(0, |outcome| outcome.left_counts().ended);
            let left = match left {
                0 => String::new(),
                count => format!(" ({} left over, now terminated)", text::count(count, "process")),
            };
            let (id, command) = (run.intent.id(), run.intent.command());
            format!("run {id} was interrupted, its retake process died: {command}{left}")
        }
        Notice::LoopRunnerDied { kind, id } => {
            let what = match kind {
                retake_types::Kind::Crash => "crash test",
                kind => kind.as_str(),
            };
            format!("{what} {} was interrupted, its retake process died", id.short())
        }
        Notice::DeadRunsNotMarked(error) => {
            format!("interrupted runs could not be marked: {}", store_error(error))
        }
        Notice::Leftover { pid, run, command, killed } => {
            let did = if *killed { "was terminated" } else { "could not be terminated" };
            format!("{command} ({pid}), left over from run {}, {did}", run.short())
        }
        Notice::Erased { runs, days } => format!(
            "{} older than {} erased (execution.audit.retention_days)",
            text::count(*runs, "run"),
            text::count((*days).into(), "day"),
        ),
        Notice::NotErased(error) => format!("old runs could not be erased: {}", store_error(error)),
        Notice::ReportUnreadable { path, error } => {
            format!("the test report {} is ignored: {error}", path.display())
        }
        Notice::ReportPattern(error) => format!("tests.reports: {error}"),
        Notice::ChangesUnknown(error) => format!("changed files are unknown: {error}"),
        Notice::TrackingImpaired(error) => error.clone(),
        Notice::Remote(notice) => remote_notice(notice),
    }
}

/// A notice about runs on other machines.
fn remote_notice(notice: &RemoteNotice) -> String {
    match notice {
        RemoteNotice::SchedulerFails(error) => format!("{error}; trying again"),
        RemoteNotice::SchedulerAnswersAgain => "Slurm answers again".to_owned(),
        RemoteNotice::QueueFull { waiting, limit, said } => {
            let limit = limit.map_or_else(String::new, |limit| format!(" (MaxJobCount={limit})"));
            format!(
                "Slurm's queue is full{limit}: {} for jobs to end there, then {} submitted; \
                 sbatch: {said}",
                match waiting {
                    1 => "1 run waits".to_owned(),
                    more => format!("{more} runs wait"),
                },
                if *waiting == 1 { "it is" } else { "they are" },
            )
        }
        RemoteNotice::QueueAccepts => "Slurm's queue takes jobs again".to_owned(),
        RemoteNotice::LeftRunning { runs } => format!(
            "Slurm does not answer, so {} cancelled in the shared directory only: what runs ends by \
             itself within seconds where it sees that directory, what waits ends when it starts; \
             the next `retake matrix run`, `retake crash explore` or `retake exec --on slurm` \
             records how",
            match runs {
                1 => "1 run is".to_owned(),
                more => format!("{more} runs are"),
            },
        ),
        RemoteNotice::DirectoryNotReachable { dir, why } => format!(
            "{} is not reachable now: {why}; waiting until it is; nothing is run again until then",
            dir.display()
        ),
        RemoteNotice::DirectoryFull(dir) => format!(
            "{} is full: free space there; runs whose results did not fit are not run again yet",
            dir.display()
        ),
        RemoteNotice::DirectoryUsable(dir) => format!("{} is usable again", dir.display()),
        RemoteNotice::SubmittedAgain { run, why } => {
            format!("run {} is submitted again: {why}", run.short())
        }
        RemoteNotice::ResultDamaged { path, why } => {
            format!("{}: the result is damaged: {why}", path.display())
        }
        RemoteNotice::OutputNotKept { bytes, why } => {
            format!("{} of output could not be kept: {why}", text::count(*bytes, "byte"))
        }
        RemoteNotice::NotCollected { batch, why } => {
            format!("batch {batch} could not be collected: {why}")
        }
        RemoteNotice::BatchesUnknown(why) => {
            format!("could not look for batches on other machines: {why}")
        }
        RemoteNotice::NotRemoved(why) => {
            format!("could not clean up the shared directory: {why}")
        }
    }
}

/// A reason of a refusal, with the options concerned.
pub(crate) fn refusal(reason: &RefusalReason) -> String {
    match reason {
        RefusalReason::ZeroTimeout => format!("{reason}, or --no-timeout for none"),
        RefusalReason::DirectoryMissing(path) => format!(
            "working directory {}: there is no such directory; create it or correct --cwd",
            path.display()
        ),
        RefusalReason::CurrentDirectoryGone => {
            "working directory .: the current directory no longer exists; cd to one that does, or name one with --cwd".to_owned()
        }
        RefusalReason::ShellNeeded(_) => format!(
            "{reason}; allow one with --shell true, or give the program and its arguments after --"
        ),
        RefusalReason::UnknownSecret { name } => {
            format!("--secret {name}: there is no such variable")
        }
        RefusalReason::SandboxHome(_) => {
            format!("{reason}, or name what it may write with --allow-write")
        }
        RefusalReason::SandboxOff => {
            "sandbox rules are given but the sandbox is off; add --sandbox or remove them"
                .to_owned()
        }
        RefusalReason::SandboxDetach => {
            "--detach-ok cannot be used with --sandbox: all processes of a sandbox end with it".to_owned()
        }
        other => other.to_string(),
    }
}

/// What to do about the error of a run.
fn hint(error: &RunError) -> Option<&'static str> {
    let text = match (error.code, error.detail) {
        (ErrorCode::LimitExceeded, Some(ErrorDetail::Limit(limit))) => match limit {
            LimitKind::Memory => "raise it with --limit memory=…, or make the command use less",
            LimitKind::Cpu => "raise it with --limit cpu=…, or make the command use less",
            LimitKind::Procs => "raise it with --limit procs=…, or make the command use less",
            LimitKind::Files => "raise it with --limit files=…, or make the command use less",
            LimitKind::Fsize => "raise it with --limit fsize=…, or make the command use less",
        },
        (ErrorCode::Cancelled, Some(ErrorDetail::ReaderGone | ErrorDetail::OutputNotWritable)) => {
            "use --quiet to run without passing output on"
        }
        (ErrorCode::Timeout, Some(ErrorDetail::SchedulerTimeLimit)) => {
            "allow more time with --timeout"
        }
        (ErrorCode::LimitExceeded, Some(ErrorDetail::SchedulerMemoryLimit)) => {
            "ask for more with slurm.options, such as --mem=4G"
        }
        (ErrorCode::NoResources, Some(ErrorDetail::RunLost)) => {
            "the outcome of the command is unknown; run it again"
        }
        (ErrorCode::Timeout, _) => {
            "allow more time with --timeout, or check the output for what it waited for"
        }
        (ErrorCode::OutputTooLarge, _) => {
            "raise --max-output-kb, or read all of it with `retake runs logs`"
        }
        (ErrorCode::Failed, Some(ErrorDetail::KeeperKilled)) => "run it again",
        (ErrorCode::InvalidRequest, _) => {
            "nothing was started; correct the request and run it again"
        }
        (ErrorCode::WorkingDirectory, _) => "nothing was started; --cwd names another directory",
        (ErrorCode::NotFound, Some(ErrorDetail::MissingInterpreter)) => {
            "install the interpreter, or correct the first line of the script"
        }
        (ErrorCode::NotFound, Some(_)) => {
            "nothing was started; name a program that you may execute"
        }
        (ErrorCode::NotFound, None) => {
            "check the spelling and PATH, give its full path, or use --shell true for a shell builtin"
        }
        (ErrorCode::Sandbox, Some(ErrorDetail::SandboxPart(part))) => sandbox_hint(part),
        (ErrorCode::Sandbox, Some(ErrorDetail::SandboxDrops)) => {
            "nothing was started; --sandbox=best-effort confines it with what this machine has, and \
             records what is not enforced"
        }
        (ErrorCode::Sandbox, Some(ErrorDetail::NoSandbox)) => {
            "nothing was started; allow user namespaces (sysctl user.max_user_namespaces, \
             kernel.apparmor_restrict_unprivileged_userns=0, or the container's seccomp profile), or \
             use a kernel with Landlock"
        }
        (ErrorCode::Sandbox, _) => "nothing was started; correct the request and run it again",
        (ErrorCode::NoResources, _) => "`ulimit -a` shows the limits of this session",
        _ => return None,
    };
    Some(text)
}

/// Why nothing was started, and what to do about it.
pub(crate) fn not_confined(failure: &StartFailure) -> String {
    match hint(&retake_runner::run::start_error(failure)) {
        Some(hint) => format!("{failure}\n{hint}"),
        None => failure.to_string(),
    }
}

/// How other machines confine commands is unknown here.
pub(crate) const SANDBOX_IS_LOCAL: &str =
    "a sandbox confines commands on this machine only; with --on use --sandbox=off";

/// What is wrong with a settings file.
pub(crate) fn settings_problem(file: &Path, problem: &SettingsProblem) -> String {
    let SettingsProblem { key, fault } = problem;
    let text = match fault {
        SettingsFault::Unreadable(why) => format!("it cannot be read: {why}"),
        SettingsFault::NotJson(why) => format!("it is not JSON: {why}"),
        SettingsFault::Missing => "is missing".to_owned(),
        SettingsFault::Unknown => "is not a setting of sandbox-runtime; remove it".to_owned(),
        SettingsFault::NoMeaning => "is not supported by retake's sandbox; remove it".to_owned(),
        SettingsFault::Kind(kind) => format!("must be {kind}"),
        SettingsFault::Pattern(path) => {
            format!("{path:?} is a pattern; name each path, or a directory for all below it")
        }
        SettingsFault::Host(host, problem) => format!("{host:?}: {problem}"),
        SettingsFault::Path(path) => format!("{path:?}: there is no home directory"),
    };
    match key.is_empty() {
        true => format!("--sandbox-settings {}: {text}", file.display()),
        false => format!("--sandbox-settings {}: {key}: {text}", file.display()),
    }
}

/// The promises that the sandbox of a run did not keep.
pub(crate) fn not_kept(report: &SandboxReport) -> Vec<String> {
    let line = |promise: &DroppedPromise| {
        format!("not kept by the sandbox of this machine: {}", dropped(*promise))
    };
    report.dropped.iter().map(line).collect()
}

/// A promise that the sandbox does not keep here, and what protects it instead.
pub(crate) fn dropped(promise: DroppedPromise) -> String {
    let remedy = match promise {
        DroppedPromise::Record => "; keep it outside of the project with --store",
        DroppedPromise::ProtectedFiles => "; look at .git and .agent before you use them",
        _ => "",
    };
    format!("{promise}{remedy}")
}

/// How to enable a missing part of the sandbox.
fn sandbox_hint(part: SandboxPart) -> &'static str {
    match part {
        SandboxPart::Namespaces | SandboxPart::UserMapping => {
            "nothing was started; allow user namespaces (sysctl user.max_user_namespaces, \
             kernel.apparmor_restrict_unprivileged_userns=0, or the container's seccomp profile), \
             or use --sandbox=best-effort"
        }
        SandboxPart::Mounts | SandboxPart::Loopback | SandboxPart::Devices => {
            "nothing was started; user namespaces have no rights here: see \
             kernel.apparmor_restrict_unprivileged_userns, or use --sandbox=best-effort"
        }
        SandboxPart::Proc => {
            "nothing was started; a container that masks /proc does not allow another one: give it \
             an unmasked /proc, or use --sandbox=best-effort"
        }
        SandboxPart::Landlock | SandboxPart::Seccomp => {
            "nothing was started; the kernel must have it: CONFIG_SECURITY_LANDLOCK, Linux 5.13 or later"
        }
        SandboxPart::Capabilities | SandboxPart::Descriptors | SandboxPart::CacheLayers => {
            "nothing was started"
        }
    }
}

/// What to do about a program that is not found because its name is a whole command.
fn command_in_one_word(error: &RunError, intent: &Intent) -> Option<&'static str> {
    let CommandForm::Arguments(words) = &intent.request.command.form else { return None };
    let name = words.first()?.to_string_lossy();
    let not_found = error.code == ErrorCode::NotFound && error.detail.is_none();
    (not_found && name.trim().contains(char::is_whitespace)).then_some(
        "after -- the program and each argument are separate words, as in: retake exec -- ls -l",
    )
}

/// The run with a hint beside its error, for people and `--json`.
pub(crate) fn with_hint(mut run: Run) -> Run {
    if let Some(outcome) = &mut run.outcome
        && let Some(error) = &outcome.error
        && error.hint.is_none()
        && let Some(hint) = command_in_one_word(error, &run.intent).or_else(|| hint(error))
    {
        outcome.set_hint(hint);
    }
    run
}

fn left_group(group: &LeftGroup) -> String {
    let (is, was, had) = match group.count {
        1 => ("is", "was", "and was terminated"),
        _ => ("are", "were", "and were terminated"),
    };
    let did = match group.fate {
        LeftFate::Ended => format!("{was} still running when the command ended, {had}"),
        LeftFate::Kept => format!("{is} still running, as allowed"),
        LeftFate::Survived => format!("{is} still running and could not be terminated"),
    };
    match group.count {
        1 => format!("{} {did}", group.named),
        count => format!("{} {did}: {}", text::count(count, "process"), group.named),
    }
}

/// Prints what a person at the terminal should know about the outcome of a run.
pub(crate) fn say_outcome(finished: &FinishedRun) {
    let Some(outcome) = &finished.run.outcome else { return };
    for group in run_text::left_processes(outcome) {
        term::say(&left_group(&group));
    }
    if let Some(report) = &outcome.sandbox {
        not_kept(report).iter().for_each(|line| term::say(line));
        let request = &finished.run.intent.request;
        denied::lines(report, request).iter().for_each(|line| term::say(line));
    }
    if outcome.leaked && outcome.left_processes.is_empty() {
        term::say(
            "the output was still held open by a process outside this run; the rest of it is not captured",
        );
    }
    if finished.unread_bytes > 0 && finished.outcome == Outcome::TimedOut {
        let kept = if finished.run.recorded { "; the record has it" } else { "" };
        term::say(&format!(
            "{} of output dropped: the reader was too slow{kept}",
            text::count(finished.unread_bytes, "byte")
        ));
    }
    // A plain failure has printed its own message, and with a closed stdout there is no reader.
    let spoke = matches!(finished.outcome, Outcome::Exited(_)) || finished.reader_gone;
    if let Some(error) = outcome.error.as_ref().filter(|_| !spoke) {
        if error.problems.len() > 1 {
            for problem in &error.problems {
                term::say(&format!("{} {problem}", error.code));
            }
        } else {
            term::say(&format!("{} {}", error.code, error.message));
        }
        if let Some(hint) = &error.hint {
            term::say(&format!("hint: {hint}"));
        }
    }
}

/// The last line about a failed run: its id, and the command that shows more.
pub(crate) fn say_where_more_is(run: &Run) {
    if run.recorded && !run.success() {
        let (id, outcome) = (run.intent.id().short(), run_text::outcome(run).0);
        term::say(&format!("run {id}: {outcome}; `retake runs show {id}` shows more"));
    }
}

/// Whether test results were asked for and none were found in what the command did.
pub(crate) fn found_no_tests(run: &Run) -> bool {
    let Some(outcome) = &run.outcome else { return false };
    let observed = outcome.effects.as_ref().and_then(Effects::observations);
    run.intent.request.effects.tests
        && outcome.kind != OutcomeKind::NotStarted
        && observed.is_some_and(|observed| observed.test_results.is_none())
}

pub(crate) fn say_no_tests(run: &Run) {
    if found_no_tests(run) {
        term::say(
            "--tests: no test results found; `retake exec --help` says where report files are looked for, \
             and tests.reports in the configuration names others",
        );
    }
}

/// Why no process could be started at all.
pub(crate) fn no_process(error: &std::io::Error) -> String {
    format!("could not start a process: {}", text::plain(error))
}

/// How many runs on other machines are queued and running, and where; `None` if all have ended.
pub(crate) fn remote_status(status: &RemoteStatus) -> Option<String> {
    let RemoteStatus { queued, running, nodes } = status;
    let on = match nodes.len() {
        0 => String::new(),
        1..=4 => format!(" on {}", nodes.join(" ")),
        count => format!(" on {}", text::count(count as u64, "node")),
    };
    (queued + running > 0).then(|| format!("{queued} queued, {running} running{on}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ended_runs_are_left_out_of_the_status() {
        let status = |queued, running, nodes: &[&str]| {
            let nodes = nodes.iter().map(|node| (*node).to_owned()).collect();
            remote_status(&RemoteStatus { queued, running, nodes })
        };
        assert_eq!(status(0, 0, &[]), None);
        assert_eq!(status(1, 3, &["n1", "n2"]).unwrap(), "1 queued, 3 running on n1 n2");
        let many = ["n0", "n1", "n2", "n3", "n4"];
        assert_eq!(status(0, 5, &many).unwrap(), "0 queued, 5 running on 5 nodes");
    }

    #[test]
    fn an_error_of_the_record_says_what_to_do() {
        use retake_store::Error;
        let path = std::path::PathBuf::from("/x");
        let corrupt = Error::Corrupt { path: path.clone(), detail: "y".to_owned() };
        assert!(store_error(&corrupt).contains("doctor --repair"));
        assert!(store_error(&Error::DiskFull { path }).contains("runs prune"));
    }
}
