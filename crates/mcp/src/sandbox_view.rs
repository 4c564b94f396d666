//! What a sandbox denied to a run, and the files that the run left for the host.

use retake_runner::denied_text;
use retake_types::{
    LeftFile, LeftForHost, NetworkRefusal, NetworkUse, RunRequest, SandboxReport, text,
};

use super::run_view::LISTED;
use super::terminal_text::visible;

pub(super) fn denied(report: &SandboxReport, request: &RunRequest) -> Vec<String> {
    let (lines, unlisted) = denied_text::lines(report, request);
    let more = lines.len().saturating_sub(LISTED) as u64 + unlisted;
    let mut denied: Vec<String> = lines.into_iter().take(LISTED).map(|line| line.what).collect();
    if more > 0 {
        denied.push(format!("{} more", text::count(more, "time")));
    }
    denied
}

/// `example.com:443`, with the reason unless it is just that no rule allows it.
pub(super) fn refused_hosts(report: &SandboxReport) -> Vec<String> {
    let refused = report.network.iter().filter(|used| !used.allowed && !used.host.is_empty());
    let host = |used: &NetworkUse| {
        let host = match used.host.contains(':') {
            true => format!("[{}]:{}", used.host, used.port),
            false => format!("{}:{}", used.host, used.port),
        };
        match used.reason {
            None | Some(NetworkRefusal::NotAllowed) => visible(&host),
            Some(reason) => visible(&format!("{host} ({reason})")),
        }
    };
    let mut hosts: Vec<String> = refused.clone().take(LISTED).map(host).collect();
    let more = refused.count().saturating_sub(LISTED) as u64 + report.network_unlisted;
    if more > 0 {
        hosts.push(format!("{more} more"));
    }
    hosts
}

pub(super) fn left_for_host(left: &LeftForHost) -> Vec<String> {
    let line = |file: &LeftFile| {
        let aside = if file.moved_to.is_some() { ", moved aside" } else { "" };
        visible(&format!("{} {}{aside}", file.kind.as_str(), file.path))
    };
    left.files.iter().take(LISTED).map(line).collect()
}
