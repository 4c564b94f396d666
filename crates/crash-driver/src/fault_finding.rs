//! Faults after which the check fails, as findings: one for each call, role of a file and kind of failure.

use std::path::Path;

use retake_crash::fault::Fault;
use retake_crash::model::{Model, quoted_path};
use retake_crash::operation::Recording;
use retake_types::loop_record::crash::{CrashFault, CrashFaultState, CrashFinding};
use retake_types::text;

use crate::fault_plan::{FailedFault, FailingFaults, FaultPlan};
use crate::fault_run::{FaultCall, FaultOutcome};

/// The findings of a plan, in the order in which the program made the calls, with their runs. Ids
/// are assigned later.
pub(crate) fn findings(plan: FaultPlan, model: Model) -> Vec<(CrashFinding, Recording)> {
    let mut failing: Vec<FailingFaults> = plan.failing.into_values().collect();
    failing.sort_by_key(|one| (one.first.1.call.operations, one.first.0));
    failing.into_iter().map(|one| finding(one, model)).collect()
}

fn finding(failing: FailingFaults, model: Model) -> (CrashFinding, Recording) {
    let FailingFaults { numbers, faults, first: (_, first) } = failing;
    let sentence = sentence(&first, &faults, model);
    let FailedFault { call, state, outcome, said, key, check, recording, .. } = *first;
    let mut files = vec![call.file.clone()];
    files.extend(call.to.clone());
    let finding = CrashFinding {
        sentence,
        files,
        states: numbers.len() as u64,
        key,
        operation: call.operations,
        acknowledgements: call.acknowledgements,
        verdict: check.verdict(),
        output: check.output,
        // The run without the fault passes.
        proven: true,
        fault: Some(CrashFault {
            call: call.call,
            occurrence: call.occurrence,
            file: call.file,
            to: call.to,
            faults: faults.iter().map(|fault| fault.name().to_owned()).collect(),
            state,
            outcome: outcome.text(),
            said,
        }),
        ..CrashFinding::default()
    };
    (finding, recording)
}

/// Such as "`write` to `map` fails with ENOSPC or EIO".
pub(crate) fn failure_text(call: &FaultCall, faults: &[Fault]) -> String {
    let file = quoted(&call.file);
    let subject = match (call.call.as_str(), &call.to) {
        (name, Some(to)) => format!("`{name}` of {file} to {}", quoted(to)),
        (name @ ("syncfs" | "sync"), None) => format!("`{name}`"),
        (name, None) if name.contains("write") => format!("`{name}` to {file}"),
        (name, None) => format!("`{name}` of {file}"),
    };
    let errors: Vec<&str> =
        faults.iter().filter(|fault| fault.code().is_some()).map(|fault| fault.name()).collect();
    let errors = errors.join(" or ");
    match (errors.is_empty(), faults.contains(&Fault::ShortWrite)) {
        (true, _) => format!("{subject} writes only a part"),
        (false, true) => format!("{subject} fails with {errors} or writes only a part"),
        (false, false) => format!("{subject} fails with {errors}"),
    }
}

/// The text is a formatted path already.
fn quoted(file: &str) -> String {
    match file.starts_with("$'") {
        true => format!("`{file}`"),
        false => quoted_path(Path::new(file)),
    }
}

fn sentence(first: &FailedFault, faults: &[Fault], model: Model) -> String {
    let failure = failure_text(&first.call, faults);
    let since = (first.acks - first.call.acknowledgements.min(first.acks)) as u64;
    let lines = || text::count(since, "more line");
    let outcome = first.outcome.text();
    let success = first.outcome == FaultOutcome::Exited(0);
    match (first.state, success) {
        (CrashFaultState::AsLeft, true) if since > 0 => format!(
            "{failure}, and the program acknowledges {} and exits with 0: the check fails on what \
             it left",
            lines()
        ),
        (CrashFaultState::AsLeft, true) => {
            format!("{failure}, and the program exits with 0: the check fails on what it left")
        }
        (CrashFaultState::AsLeft, false) => {
            let kill = match first.after_kill {
                true => ", as it does after a kill at this moment",
                false => "",
            };
            format!("{failure}, and the program {outcome}: the check fails on what it left{kill}")
        }
        (CrashFaultState::PowerLoss, _) if since > 0 => format!(
            "{failure}, and the program acknowledges {}: a power loss ({}) takes what {} for",
            lines(),
            model.name(),
            if since == 1 { "it stands" } else { "they stand" }
        ),
        (CrashFaultState::PowerLoss, _) => format!(
            "{failure}, and the program {outcome}: the check fails after a power loss ({})",
            model.name()
        ),
        (CrashFaultState::PagesDropped, _) if first.call.call == "close" => format!(
            "{failure}, and the program {outcome} as if the bytes were safe: they were not synced \
             before, and the error says that they may be lost"
        ),
        (CrashFaultState::PagesDropped, _) => format!(
            "{failure}, and the program {outcome} as if the bytes could still be synced: the kernel \
             may have dropped them with the error, and no later sync writes them; write them again, \
             or stop"
        ),
        (CrashFaultState::Silent, _) => format!(
            "{failure}, and the program exits with 0 and says nothing of it, although it does not do \
             what it does without the fault"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(name: &str, to: Option<&str>) -> FaultCall {
        FaultCall {
            call: name.to_owned(),
            occurrence: 1,
            file: "map".to_owned(),
            to: to.map(str::to_owned),
            operations: 1,
            acknowledgements: 0,
            faults: Vec::new(),
        }
    }

    #[test]
    fn a_fault_is_described_by_call_file_and_error() {
        let text = |name: &str, to, faults: &[Fault]| failure_text(&call(name, to), faults);
        assert_eq!(
            text("pwrite64", None, &[Fault::Eio, Fault::Enospc]),
            "`pwrite64` to `map` fails with EIO or ENOSPC"
        );
        assert_eq!(
            text("write", None, &[Fault::ShortWrite]),
            "`write` to `map` writes only a part"
        );
        assert_eq!(
            text("write", None, &[Fault::Eio, Fault::ShortWrite]),
            "`write` to `map` fails with EIO or writes only a part"
        );
        assert_eq!(
            text("rename", Some("b"), &[Fault::Eio]),
            "`rename` of `map` to `b` fails with EIO"
        );
        assert_eq!(text("fsync", None, &[Fault::Eio]), "`fsync` of `map` fails with EIO");
    }
}
